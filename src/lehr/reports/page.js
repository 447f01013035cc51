"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
const finger = window.matchMedia("(pointer: coarse)");
const PRINTED = 640;  // pixels, within every usual sheet
const NAMES = ["--accent", "--second", "--third", "--fourth", "--fifth"];
const isPrinted = () => document.documentElement.classList.contains("printed");
function colourOf(line, place) { return colour(line.is_mark ? "--ink" : line.dash === "dash" ? "--quiet" : NAMES[(line.colour ?? place) % NAMES.length]); }
function size() { return isPrinted() ? { width: PRINTED, autosize: false } : { autosize: true }; }
function inLines(title, chart) {  // a long title of an axis, on a narrow chart
  const most = (document.getElementById(chart.element).clientWidth - 70) / 8.5, lines = [""];
  for (const word of title.split(" ")) {
    if (lines.at(-1) && (lines.at(-1) + word).length >= most) lines.push(word); else lines.push((lines.pop() + " " + word).trim());
  }
  return lines.join("<br>");
}
function ranged(chart, axis) {
  if (chart.zoomed) return { range: chart.zoomed[axis] };
  return axis === "x" && chart.x_labels.length ? { range: [-0.5, chart.x_labels.length - 0.5] } : {};
}
function decades(chart) {
  const values = chart.lines.flatMap(line => line.x).filter(value => value > 0);
  return Math.log10(Math.max(...values) / Math.min(...values));
}
function draw(chart) {
  // A finger on a chart scrolls the page, unless one has zoomed in: then it moves the chart.
  const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule"), zerolinecolor: colour("--rule"),
                 fixedrange: finger.matches && !chart.zoomed, automargin: true };
  const colours = NAMES.map(colour), hidden = chart.hidden ?? new Set();
  const namesLines = chart.names_lines || chart.lines.length > 1;
  const hover = line => (line.notes.length ? "%{text}" : (namesLines ? line.name + "<br>" : "") + chart.point) + "<extra></extra>";
  const number = (line, place) => line.colour ?? place, xTitle = inLines(chart.x_title, chart);
  return Plotly.react(chart.element, chart.lines.map((line, place) => line.is_bars ? {
    type: "bar", x: line.x, y: line.y, name: line.name, text: line.notes, textposition: "none",
    visible: hidden.has(place) ? "legendonly" : true, marker: { color: colours[number(line, place) % colours.length],
      pattern: { shape: ["", "/", ".", "x"][Math.floor(number(line, place) / colours.length) % 4] } },
    hovertemplate: hover(line)
  } : ({
    x: line.x, y: line.y, name: line.name, text: line.notes, visible: hidden.has(place) ? "legendonly" : true,
    mode: line.is_mark || line.is_scattered ? "markers" : chart.has_markers ? "lines+markers" : "lines",
    line: { color: line.dash === "dash" ? colour("--quiet") : colours[number(line, place) % colours.length],
            dash: line.dash === "solid" && number(line, place) >= colours.length ? "longdashdot" : line.dash,
            width: line.is_area ? 0 : line.dash === "solid" ? 2.5 : 1.5 },
    fill: line.is_area ? "toself" : "none", fillcolor: colour("--quiet") + "2e",
    marker: line.is_mark ? { size: 13, symbol: "diamond", color: colour("--ink") } : { size: line.is_scattered ? 8 : 5 },
    ...(line.is_area ? { hoverinfo: "skip" } : { hovertemplate: hover(line) })
  })), {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--quiet"), size: 13 },
    margin: { l: 44, r: 12, t: 8, b: 44 + 17 * (xTitle.split("<br>").length - 1) }, hovermode: "x", showlegend: false,
    dragmode: finger.matches ? "pan" : "zoom", barmode: "group",
    ...size(),
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink") } },
    xaxis: { ...axis, ...ranged(chart, "x"), type: chart.x_scale, rangemode: "tozero", title: { text: xTitle }, tickformat: chart.x_format,
             dtick: chart.x_scale === "log" && decades(chart) < 3 ? "D2" : undefined, tickvals: chart.x_ticks.length ? chart.x_ticks : undefined,
             ticktext: chart.x_labels.length ? chart.x_labels : undefined },
    yaxis: { ...axis, ...ranged(chart, "y"), type: chart.y_scale, rangemode: chart.from_zero ? "tozero" : "normal", title: { text: chart.y_title },
             tickformat: chart.y_format }
  }, { displayModeBar: false, responsive: true, showTips: false });
}
function drawAll() { charts.forEach(drawAgain); }
function within(chart, by, moved) {
  const axes = document.getElementById(chart.element)._fullLayout, zoomed = {};
  for (const [name, axis] of [["x", axes.xaxis], ["y", axes.yaxis]]) {
    const [low, high] = axis.range, middle = (low + high) / 2 + (name === "x" ? moved * (high - low) : 0);
    zoomed[name] = [middle - by * (high - low) / 2, middle + by * (high - low) / 2];
  }
  chart.zoomed = zoomed;
  drawAgain(chart);
}
function drawAgain(chart) { draw(chart); showTools(chart); }
function showTools(chart) {
  chart.tools.querySelectorAll("[aria-pressed]").forEach((button, place) => {
    button.setAttribute("aria-pressed", String(!chart.hidden.has(place)));
    button.querySelector(".swatch").style.borderTopColor = colourOf(chart.lines[place], place);
  });
  chart.tools.querySelector(".all").disabled = !chart.zoomed;
}
function button(words, label, act, into) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = words;
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  into.append(made);
  return made;
}
function plain(escaped) { return new DOMParser().parseFromString(escaped, "text/html").documentElement.textContent; }
function addTools(chart) {  // buttons and not a legend: a keyboard reaches them
  const place = document.getElementById(chart.element), tools = document.createElement("div");
  const title = document.getElementById(chart.element + "-title")?.textContent ?? chart.element;
  tools.className = "tools";
  tools.setAttribute("role", "group");
  tools.setAttribute("aria-label", "Lines and zoom: " + title);
  chart.hidden = new Set();
  if (chart.lines.length > 1 || chart.names_lines) chart.lines.forEach((line, number) => {
    const made = button("", "", () => {
      if (!chart.hidden.delete(number)) chart.hidden.add(number);
      drawAgain(chart);
    }, tools);
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.borderTopStyle = line.dash === "solid" ? ((line.colour ?? number) >= NAMES.length ? "dashed" : "solid") : line.dash === "dot" ? "dotted" : "dashed";
    made.setAttribute("aria-pressed", "true");
    made.append(swatch, plain(line.name));
  });
  const zoom = document.createElement("span");
  zoom.className = "zoom";
  tools.append(zoom);
  button("+", "Zoom in: " + title, () => within(chart, 0.6, 0), zoom);
  button("−", "Zoom out: " + title, () => within(chart, 1 / 0.6, 0), zoom);
  button("All", "Show all: " + title, () => { chart.zoomed = null; drawAgain(chart); }, zoom).className = "all";
  zoom.addEventListener("keydown", event => {
    const moved = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    if (moved && chart.zoomed) { event.preventDefault(); within(chart, 1, moved); }
  });
  place.before(tools);
  chart.tools = tools;
}
function follow(chart) {  // what a pointer does to it
  const place = document.getElementById(chart.element);
  place.on("plotly_relayout", changed => {
    if (!Object.keys(changed).some(name => /^[xy]axis\.(range|autorange)/.test(name))) return;
    const axes = place._fullLayout, isAll = "xaxis.autorange" in changed || "yaxis.autorange" in changed;
    chart.zoomed = isAll ? null : { x: [...axes.xaxis.range], y: [...axes.yaxis.range] };
    showTools(chart);
  });
}
function printing(isOn) {
  document.documentElement.classList.toggle("printed", isOn);
  document.querySelectorAll("details.fold").forEach(fold => { if (isOn) fold.dataset.open = fold.open; fold.open = isOn || fold.dataset.open === "true"; });
  drawAll();
  if (!isOn) document.querySelectorAll(".js-plotly-plot").forEach(place => Plotly.Plots.resize(place));
}
async function unpackPlotly() {
  const packed = document.getElementById("plotly"), bytes = Uint8Array.from(atob(packed.textContent), letter => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")), script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);  // and is run at once
  packed.remove();
}
function begin() {
  drawAll();
  charts.forEach(follow);
  dark.addEventListener("change", drawAll);
  finger.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  document.documentElement.classList.add("drawn");
}
function giveNumbersInstead(error) {
  document.documentElement.classList.add("undrawn");
  document.querySelectorAll("details.numbers").forEach(numbers => { numbers.open = true; });
  console.warn("The charts are not drawn: " + error);
}
charts.forEach(addTools);  // unseen until there are charts, so that nothing moves when there are
unpackPlotly().then(begin).catch(giveNumbersInstead);

"use strict";
// Asks for the list again and again, and changes what has changed: a row keeps its place in the page, so that whoever
// is reading it or has the keyboard on it is not disturbed. Everything is put in as text.
const EVERY = 2000, PATIENCE = 10000;  // milliseconds
const table = document.getElementById("runs"), body = table.tBodies[0], filter = document.getElementById("words");
const columns = [...table.tHead.rows[0].cells].map(cell => [cell.dataset.field, cell.textContent]);
const counted = (number, word) => number + " " + word + (number === 1 ? "" : "s");

function put(element, text) { if (element.textContent !== text) element.textContent = text; }

function madeRow(run) {
  const row = document.createElement("tr");
  row.dataset.key = run.key;
  row.setAttribute("role", "row");
  for (const [field, heading] of columns) {
    const isName = field === "name", cell = document.createElement(isName ? "th" : "td");
    cell.setAttribute("role", isName ? "rowheader" : "cell");
    if (isName) {
      cell.scope = "row";
      const link = document.createElement("a");
      link.href = "/runs/" + encodeURIComponent(run.key);
      cell.append(link);
    } else {
      cell.className = "of-" + field;
      cell.dataset.heading = heading;
    }
    row.append(cell);
  }
  return row;
}

function fill(row, run) {
  if (row.className !== run.kind) row.className = run.kind;
  columns.forEach(([field], place) => put(field === "name" ? row.cells[place].firstElementChild : row.cells[place], run[field]));
}

function show(runs) {
  const known = new Map([...body.rows].map(row => [row.dataset.key, row]));
  runs.forEach((run, place) => {
    const row = known.get(run.key) ?? madeRow(run);
    known.delete(run.key);
    fill(row, run);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  known.forEach(row => row.remove());
  choose();
}

function choose() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...body.rows];
  rows.forEach(row => {
    const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
    const isHidden = !words.every(word => text.includes(word));
    if (row.hidden !== isHidden) row.hidden = isHidden;
  });
  const shown = rows.filter(row => !row.hidden), training = shown.filter(row => row.className === "training").length;
  const all = shown.length < rows.length ? shown.length + " of " + counted(rows.length, "run") : counted(rows.length, "run");
  put(document.getElementById("status"), all + (training ? ", " + training + " training" : ""));
}

async function refresh() {
  try {
    if (!document.hidden) {
      const answer = await fetch("/runs.json", { signal: AbortSignal.timeout(PATIENCE) });
      if (!answer.ok) throw new Error(answer.status);
      show((await answer.json()).runs);
    }
  } catch {
    put(document.getElementById("status"), "The server does not answer any more. The list is its last answer.");
  }
  setTimeout(refresh, EVERY);
}

filter.addEventListener("input", choose);
document.getElementById("filter").hidden = false;
choose();
setTimeout(refresh, EVERY);

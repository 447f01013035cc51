"""``python -m experiments``: run the tables and figures of papers, and show them beside the papers' numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments import experiment as catalogue
from experiments.experiment import PAPERS, Experiment, Outcomes, Size, Table, key_of
from experiments.page import Part, headings, label_quick, render, rows_and_remarks, to_json
from experiments.running import Progress, run_all
from experiments.store import Entry, ResultFile, Store
from lehr import validate
from lehr.cli import common
from lehr.cli.common import NO, Command, Json, Overwrite, complain, example, resumable
from lehr.errors import InvalidValue
from lehr.files import atomic
from lehr.reports.progress import one_line

LIST, ALL = "list", "all"

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(
    cls=Command,
    epilog=example("  python -m experiments list\n", "  python -m experiments sa-dpsgd table1 --only-show\n"),
)
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="A paper; or list, which shows what there is.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Its tables and figures, such as table1; or all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each setting; by default as in the table.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small versions for a CPU, labelled as such.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that run jobs in parallel.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    store: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the outcome of every run is stored.")] = Path(
        "reproduced"
    ),
    minutes: Annotated[float | None, typer.Option(help="Start no further run after this time.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Add the outcomes to one file per table in this folder.")
    ] = None,
    given: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE", help="Use outcomes that --keep wrote; or a folder.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a web page.")] = None,
    only_show: Annotated[bool, typer.Option("--only-show", help="Run nothing: show the outcomes there are.")] = False,
    commit: Annotated[str | None, typer.Option(help="Commit of the source to record, where git is missing.")] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Run tables and figures of a paper and show them beside the paper's numbers.

    Every run is stored as soon as it ends: the same command continues where it was stopped, and tables share runs. The
    published ε of a method stands beside the proven ε.
    """
    if paper == LIST:
        _list(json=json)
        return
    chosen = _choose(paper, names or [])
    size = Size(seeds=None if seeds is None else validate.count(seeds=seeds), is_quick=quick)
    if to is not None:
        atomic.refuse_to_replace(to, overwrite=overwrite)
    if keep is not None:  # refuse a wrong file before hours are spent
        _keep(keep, {each: {} for each in chosen}, is_quick=quick)
    files = [ResultFile.read(file) for path in given or [] for file in _json_files(path)]
    known = {key: entry for file in files for key, entry in file.entries.items()}
    outcomes_store, jobs = Store(store), [job for each in chosen for job in each.jobs(size)]
    if damaged := outcomes_store.damaged(jobs):
        what = "left out" if only_show else "run again"
        complain(f"outcomes that cannot be read are {what} ({len(damaged)}): {'; '.join(damaged)}")
    summary = None
    if not only_show:
        outcomes_store.fill({key: entry for key, entry in known.items() if not outcomes_store.has(key)})
        with resumable():
            summary = run_all(
                jobs,
                outcomes_store,
                device=device,
                data_dir=None if data_dir is None else str(data_dir),
                processes=processes,
                deadline_seconds=None if minutes is None else 60 * validate.positive(minutes=minutes),
                commit=commit,
                progress=None if quiet or json else Progress(_print_progress),
            )
        if summary.left:
            complain(f"{summary.left} of {summary.jobs} jobs are left; the same command continues from here")
    known |= outcomes_store.entries(jobs)
    outcomes = Outcomes({key: entry["result"] for key, entry in known.items()})
    parts = [_part(each, outcomes, size) for each in chosen]
    written = []
    if keep is not None:
        entries = {each: {key: known[key] for key in map(key_of, each.jobs(size)) if key in known} for each in chosen}
        written += _keep(keep, entries, is_quick=quick)
    if to is not None:
        atomic.write(to, render(parts, title=PAPERS[paper][1], is_quick=quick), overwrite=overwrite)
        written.append(to)
    about = {"paper": paper, "is_quick": quick, "failed": outcomes_store.failures(jobs), "written": written}
    (_print_json if json else _print)(parts, about)
    if summary is not None and summary.failed:
        raise typer.Exit(NO)


def _list(*, json: bool) -> None:
    listed = {paper: catalogue.experiments(paper) for paper in PAPERS}
    if json:
        common.print_json({"papers": {paper: [_about(each) for each in every] for paper, every in listed.items()}})
        return
    for paper, every in listed.items():
        common.print_table(
            f"{paper}: {PAPERS[paper][1]}", ("name", "what"), [(each.name, each.title) for each in every]
        )


def _about(experiment: Experiment) -> dict[str, str]:
    return {"name": experiment.name, "title": experiment.title, "about": experiment.about}


def _choose(paper: str, names: Sequence[str]) -> list[Experiment]:
    every = catalogue.experiments(paper)
    if not names:
        allowed = "given: all, or one or more of " + ", ".join(each.name for each in every)
        raise InvalidValue("name", allowed=allowed, given=None)
    return [*every] if ALL in names else [catalogue.find_experiment(paper, name) for name in dict.fromkeys(names)]


def _json_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def _print_progress(line: str) -> None:
    print(one_line(line), file=sys.stderr, flush=True)


def _keep(folder: Path, entries: Mapping[Experiment, Mapping[str, Entry]], *, is_quick: bool) -> list[Path]:
    """Add the outcomes of each experiment to its file in the folder; a file of another table is refused."""
    paths = []
    for each, new in entries.items():
        path = folder / f"{each.paper}_{each.name}.json"
        file = ResultFile(what=each.title, paper=each.paper, name=each.name, entries=new, is_quick=is_quick)
        merged = ResultFile.read(path).merged(file) if path.exists() else file
        if new:
            folder.mkdir(parents=True, exist_ok=True)
            merged.write(path, overwrite=True)
        paths.append(path)
    return paths


def _part(experiment: Experiment, outcomes: Outcomes, size: Size) -> Part:
    keys = {*map(key_of, experiment.jobs(size))}
    report = experiment.report(outcomes, size)
    return Part(
        experiment=experiment,
        report=label_quick(report) if size.is_quick else report,
        done=len(keys & outcomes.by_key.keys()),
        jobs=len(keys),
    )


def _print_json(parts: Sequence[Part], about: Mapping[str, Any]) -> None:
    shown = [
        {**_about(part.experiment), "jobs": part.jobs, "done": part.done, **to_json(part.report)} for part in parts
    ]
    common.print_json({**about, "experiments": shown, "written": [*map(str, about["written"])]})


def _print(parts: Sequence[Part], about: Mapping[str, Any]) -> None:
    for part in parts:
        done = f" ({part.done} of {part.jobs} runs done)" if part.jobs else ""
        common.print_line(f"{part.experiment.name}: {part.experiment.title}{done}")
        for table in part.report.tables:
            _print_table(table)
        for note in part.report.notes:
            common.print_line(note)
        if part.report.charts:
            common.print_line(f"{len(part.report.charts)} charts: see them with --to FILE.html")
        common.print_line()
    for key, error in about["failed"].items():
        common.print_line(f"failed, and run again next time: {key}: {error}")
    for path in about["written"]:
        common.print_line(f"{path}: written")


def _print_table(table: Table) -> None:
    """A table for the width of the terminal: text is wrapped before numbers are."""
    rows, remarks = rows_and_remarks(table)
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
    is_number = [column.kind != "text" for column in table.columns]
    titles = [
        title.replace(" ", "\n") if number else title for title, number in zip(headings(table), is_number, strict=True)
    ]
    least = 2 * len(titles)  # the width at which no number and no word has to be broken
    for column, number in zip(zip(titles, *rows, strict=True), is_number, strict=True):
        least += max(len(part) for text in column for part in (text.split("\n") if number else text.split() or [""]))
    fits = least <= common.width()
    for title, number in zip(titles, is_number, strict=True):
        shown.add_column(title, overflow="fold", no_wrap=number and fits, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*(Text(common.printable(cell)) for cell in row))
    Console(markup=False, emoji=False, highlight=False).print(shown)
    for note in (*remarks, *table.notes):
        common.print_line(f"  {note}")


if __name__ == "__main__":
    app()

"""``python -m experiments``: run the tables and figures of papers, and show them beside the papers' numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments import experiment as catalogue
from experiments.experiment import PAPERS, Experiment, Job, Outcomes, Size, key_of
from experiments.page import Part, headings, labelled, render, to_json, with_remarks
from experiments.running import Progress, Summary, run_all
from experiments.store import Entry, ResultFile, Store, outcomes_in
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
    processes: Annotated[int, typer.Option(help="Parallel runs, each in a process of its own.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    store: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the outcome of every run is kept.")] = Path(
        "reproduced"
    ),
    minutes: Annotated[float | None, typer.Option(help="Start no further run after this time.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the outcomes to a file, or to one per table in a folder.")
    ] = None,
    given: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE", help="Use outcomes that --keep wrote; or a folder.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a web page.")] = None,
    only_show: Annotated[bool, typer.Option("--only-show", help="Run nothing: show the outcomes there are.")] = False,
    commit: Annotated[str | None, typer.Option(help="Commit of the source to record, where git is missing.")] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Run tables and figures of a paper and show them beside the paper's numbers.

    Every run is kept as soon as it ends: the same command continues where it was stopped, and tables share runs. The
    published ε of a method stands beside the proven ε.
    """
    if paper == LIST:
        _list(json=json)
        return
    chosen = _choose(paper, names or [])
    size = Size(seeds=None if seeds is None else validate.count(seeds=seeds), is_quick=quick)
    if to is not None:
        atomic.refuse_to_replace(to, overwrite=overwrite)
    files = _files_to_keep(keep, chosen)
    for each, path in zip(chosen, files, strict=False):  # refuse a wrong file before hours are spent
        _joined(each, path, {}, is_quick=quick)
    outcomes_store, kept = Store(store), [ResultFile.read(path) for path in _files_in(given or [])]
    jobs = {each.name: each.jobs(size) for each in chosen}
    every = [job for name in jobs for job in jobs[name]]
    if damaged := outcomes_store.damaged(every):
        are = "outcome cannot be read and is" if len(damaged) == 1 else "outcomes cannot be read and are"
        complain(f"{len(damaged)} {are} {'left out' if only_show else 'run again'}: {'; '.join(damaged)}")
    summary = None
    if not only_show:
        _fill(outcomes_store, kept)
        with resumable():
            summary = run_all(
                every,
                outcomes_store,
                device=device,
                data_dir=None if data_dir is None else str(data_dir),
                processes=processes,
                deadline_seconds=None if minutes is None else 60 * validate.positive(minutes=minutes),
                commit=commit,
                progress=None if quiet or json else Progress(_say),
            )
        _complain_of_jobs_left(summary)
    outcomes = Outcomes({**outcomes_in(*kept).by_key, **outcomes_store.outcomes(every).by_key})
    parts = [_part(each, jobs[each.name], outcomes, size) for each in chosen]
    for each, path in zip(chosen, files, strict=False):
        _keep(each, jobs[each.name], outcomes_store, kept, path, is_quick=quick)
    if to is not None:
        atomic.write(to, render(parts, title=PAPERS[paper][1], is_quick=quick), overwrite=overwrite)
    failures, written = outcomes_store.failures(every), [*files, *([] if to is None else [to])]
    if json:
        _print_json(paper, parts, failures, is_quick=quick, written=written)
    else:
        _print(parts, failures, written=written)
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


def _say(line: str) -> None:
    print(one_line(line), file=sys.stderr, flush=True)


def _complain_of_jobs_left(summary: Summary) -> None:
    if summary.left:
        every = summary.done + summary.failed + summary.left  # tables may share a job
        complain(f"{summary.left} of {every} jobs are left; the same command continues from here")


def _files_in(given: Sequence[Path]) -> list[Path]:
    """Return the files, and those in the folders."""
    return [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _fill(store: Store, kept: Sequence[ResultFile]) -> None:
    """Copy outcomes of kept files into the store; what the store has is newer."""
    every = {key: entry for each in kept for key, entry in each.entries.items()}
    missing = {key: entry for key, entry in every.items() if not store.has_key(key)}
    if missing:
        store.fill(missing)


def _files_to_keep(keep: Path | None, chosen: Sequence[Experiment]) -> list[Path]:
    if keep is None:
        return []
    if keep.is_dir():
        return [keep / f"{each.paper}_{each.name}.json" for each in chosen]
    if len(chosen) > 1:
        raise InvalidValue("keep", allowed="a folder that exists, for more than one table", given=str(keep))
    return [keep]


def _keep(
    experiment: Experiment, jobs: Sequence[Job], store: Store, kept: Sequence[ResultFile], path: Path, *, is_quick: bool
) -> None:
    """Add the outcomes of the experiment's jobs to the file."""
    keys = dict.fromkeys(map(key_of, jobs))
    given = {key: entry for each in kept for key, entry in each.entries.items() if key in keys}
    stored = {key: store.entry(key) for key in keys if store.has_key(key)}
    _joined(experiment, path, {**given, **stored}, is_quick=is_quick).write(path, overwrite=True)


def _joined(experiment: Experiment, path: Path, entries: Mapping[str, Entry], *, is_quick: bool) -> ResultFile:
    """Return the outcomes with those in the file; a file of another table is refused."""
    about = {"what": experiment.title, "paper": experiment.paper, "name": experiment.name}
    packed = ResultFile(**about, entries=entries, is_quick=is_quick)
    return ResultFile.read(path).joined(packed) if path.exists() else packed


def _part(experiment: Experiment, jobs: Sequence[Job], outcomes: Outcomes, size: Size) -> Part:
    keys = {key_of(job) for job in jobs}
    shown = labelled(experiment.report(outcomes, size), is_quick=size.is_quick)
    return Part(experiment=experiment, report=shown, done=len(keys & outcomes.by_key.keys()), jobs=len(keys))


def _print_json(
    paper: str, parts: Sequence[Part], failures: dict[str, str], *, is_quick: bool, written: Sequence[Path]
) -> None:
    common.print_json(
        {
            "paper": paper,
            "is_quick": is_quick,
            "experiments": [
                {**_about(part.experiment), "jobs": part.jobs, "done": part.done, **to_json(part.report)}
                for part in parts
            ],
            "failed": failures,
            "written": [str(path) for path in written],
        }
    )


def _print(parts: Sequence[Part], failures: dict[str, str], *, written: Sequence[Path]) -> None:
    for part in parts:
        done = f" ({part.done} of {part.jobs} runs done)" if part.jobs else ""
        common.print_line(f"{part.experiment.name}: {part.experiment.title}{done}")
        for table in part.report.tables:
            rows, remarks = with_remarks(table)
            is_number = [column.kind != "text" for column in table.columns]
            print_wide_table(table.title, headings(table), rows, is_number=is_number)
            for note in (*remarks, *table.notes):
                common.print_line(f"  {note}")
        for note in part.report.notes:
            common.print_line(note)
        if part.report.charts:
            common.print_line(f"{len(part.report.charts)} charts: see them with --to FILE.html")
        common.print_line()
    for key, error in failures.items():
        common.print_line(f"failed, and run again next time: {key}: {common.printable(error)}")
    for path in written:
        common.print_line(f"{common.printable(str(path))}: written")


def print_wide_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, is_number: Sequence[bool]
) -> None:
    """A table of many columns: no word of it is broken where the window is wide enough for that."""
    table = RichTable(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
    columns = [*zip(headings, *rows, strict=True)]
    room = common.width() - 2 * len(columns) - 1  # a space on either side of each, and one at the end
    widths = _widths(columns, room, is_number=is_number)
    for heading, own, is_right in zip(headings, widths, is_number, strict=True):
        table.add_column(heading, overflow="fold", width=own, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    Console(markup=False, emoji=False, highlight=False).print(table)


def _widths(columns: Sequence[Sequence[str]], room: int, *, is_number: Sequence[bool]) -> Sequence[int | None]:
    """As wide as its longest word; what is left goes to whichever has the most lines, and to numbers before text.

    Where not even the words fit, no width is said.
    """
    found = [*map(_longest_word, columns)]
    longest = [max(map(len, column[1:]), default=1) for column in columns]
    if sum(found) > room:
        return [None] * len(columns)
    for _ in range(room - sum(found)):
        broken = [place for place, own in enumerate(found) if own < longest[place]]
        if not broken:
            break
        found[max(broken, key=lambda place: (is_number[place], longest[place] / found[place]))] += 1
    return found


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=1)


def _cell(text: str) -> Text:
    return Text(common.printable(text))


if __name__ == "__main__":
    app()

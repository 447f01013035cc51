"""``lehr reproduce``: the tables and figures of papers, run again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr import validate
from lehr.cli import answering
from lehr.cli.failing import NO, complain, that_goes_on
from lehr.cli.options import Json, Overwrite, example
from lehr.errors import InvalidValue

if TYPE_CHECKING:
    from lehr.papers.experiment import Experiment, Outcomes, Size
    from lehr.papers.job import Job
    from lehr.papers.page import Part
    from lehr.papers.running import Summary
    from lehr.papers.store import Entry, Kept, Store

LIST, ALL = "list", "all"
EXAMPLE = example(
    "  lehr reproduce list\n",
    "  lehr reproduce sa-dpsgd table1 --only-show\n",
)


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="A paper; or list, which shows what there is.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Tables and figures of it, such as table1; or all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each setting; otherwise as many as the table has.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small versions for a CPU, labelled as such.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    processes: Annotated[int, typer.Option(help="Runs at once, each in a process of its own.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    store: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the outcome of every run is kept, and found again.")
    ] = Path("reproduced"),
    minutes: Annotated[float | None, typer.Option(help="After these no further run is begun.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the outcomes to one file; or to one each in a folder.")
    ] = None,
    given: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE", help="Use outcomes that --keep wrote; or a folder.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="All of it as a web page.")] = None,
    only_show: Annotated[bool, typer.Option("--only-show", help="Run nothing: show what there is.")] = False,
    commit: Annotated[str | None, typer.Option(help="Of the source, to be noted where git is not there.")] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Run the tables and figures of a paper again, and show them beside the paper's own numbers.

    Every run is kept as soon as it ends. The same command goes on where it was stopped, and tables share the runs that
    they have in common. The published ε of a method stands beside the ε that is proven.
    """
    if paper == LIST:
        _list(json=json)
        return
    from lehr.files import whole_file
    from lehr.papers.experiment import Size
    from lehr.papers.store import Kept, Store

    chosen = _chosen(paper, names or [])
    size = Size(seeds=None if seeds is None else validate.count(seeds=seeds), is_quick=quick)
    if to is not None:
        whole_file.refuse_to_replace(to, overwrite=overwrite)
    files = _kept_files(keep, chosen)
    for each, path in zip(chosen, files, strict=False):  # refused before hours are spent, not after
        _joined(each, path, {}, is_quick=quick)
    there, kept = Store(store), [Kept.read(path) for path in _listed(given or [])]
    jobs = {each.name: each.jobs(size) for each in chosen}
    every = [job for name in jobs for job in jobs[name]]
    _complain_of_damage(there, every, only_show=only_show)
    summary = None
    if not only_show:
        _fill(there, kept)
        seconds = None if minutes is None else 60 * validate.positive(minutes=minutes)
        how = {"device": device, "data_dir": None if data_dir is None else str(data_dir), "processes": processes}
        summary = _run(every, there, quiet=quiet or json, deadline_seconds=seconds, commit=commit, **how)
    outcomes = _outcomes(there, kept, every)
    parts = [_part(each, jobs[each.name], outcomes, size) for each in chosen]
    for each, path in zip(chosen, files, strict=False):
        _keep(each, jobs[each.name], there, kept, path, is_quick=quick)
    if to is not None:
        _write_page(to, parts, paper, is_quick=quick, overwrite=overwrite)
    failures = there.failures(every)
    if json:
        _answer_json(paper, parts, failures, is_quick=quick, written=[*files, *([] if to is None else [to])])
    else:
        _answer(parts, failures, written=[*files, *([] if to is None else [to])])
    if summary is not None and summary.failed:
        raise typer.Exit(NO)


# --- What there is --------------------------------------------------------------------------------------------------


def _list(*, json: bool) -> None:
    from lehr.papers.presets import PAPERS, experiments

    if json:
        listed = {paper: [_about(each) for each in experiments(paper)] for paper in PAPERS}
        answering.as_json({"papers": listed})
        return
    for paper, (_, title) in PAPERS.items():
        answering.listing(f"{paper}: {title}", ("name", "what"), [(e.name, e.title) for e in experiments(paper)])


def _about(experiment: Experiment) -> dict[str, str]:
    return {"name": experiment.name, "title": experiment.title, "about": experiment.about}


def _chosen(paper: str, names: Sequence[str]) -> list[Experiment]:
    from lehr.papers.presets import experiment, experiments

    every = experiments(paper)
    if not names:
        allowed = "given: all, or one or more of " + ", ".join(each.name for each in every)
        raise InvalidValue("name", allowed=allowed, given=None)
    return [*every] if ALL in names else [experiment(paper, name) for name in dict.fromkeys(names)]


# --- What is run, and where it is kept ------------------------------------------------------------------------------


def _run(jobs: Sequence[Job], store: Store, *, quiet: bool, **how: Any) -> Summary:
    from lehr.papers.progress import running_progress_for
    from lehr.papers.running import run_all

    with that_goes_on():
        summary = run_all(jobs, store, told=None if quiet else running_progress_for(sys.stderr), **how)
    if summary.left:
        every = summary.done + summary.failed + summary.left  # tables may share a job
        complain(f"{summary.left} of {every} jobs are left; the same command goes on from here")
    return summary


def _complain_of_damage(store: Store, jobs: Sequence[Job], *, only_show: bool) -> None:
    if damaged := store.damaged(jobs):
        are = "outcome cannot be read and is" if len(damaged) == 1 else "outcomes cannot be read and are"
        then = "left out" if only_show else "run again"
        complain(f"{len(damaged)} {are} {then}: {'; '.join(damaged)}")


def _listed(given: Sequence[Path]) -> list[Path]:
    """The files, and those in the folders."""
    return [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _fill(store: Store, kept: Sequence[Kept]) -> None:
    """Outcomes of files; what the store has is newer."""
    every = {key: entry for each in kept for key, entry in each.entries.items()}
    missing = {key: entry for key, entry in every.items() if not store.has_key(key)}
    if missing:
        store.fill(missing)


def _outcomes(store: Store, kept: Sequence[Kept], jobs: Sequence[Job]) -> Outcomes:
    from lehr.papers.experiment import Outcomes
    from lehr.papers.store import outcomes_in

    return Outcomes({**outcomes_in(*kept).by_key, **store.outcomes(jobs).by_key})


def _kept_files(keep: Path | None, chosen: Sequence[Experiment]) -> list[Path]:
    if keep is None:
        return []
    if keep.is_dir():
        return [keep / f"{each.paper}_{each.name}.json" for each in chosen]
    if len(chosen) > 1:
        raise InvalidValue("keep", allowed="a folder that is there, for more than one table", given=str(keep))
    return [keep]


def _keep(
    experiment: Experiment, jobs: Sequence[Job], store: Store, kept: Sequence[Kept], path: Path, *, is_quick: bool
) -> None:
    """Add to the file what there is of the experiment's jobs."""
    from lehr.papers.job import key_of

    keys = dict.fromkeys(map(key_of, jobs))
    given = {key: entry for each in kept for key, entry in each.entries.items() if key in keys}
    stored = {key: store.entry(key) for key in keys if store.has_key(key)}
    _joined(experiment, path, {**given, **stored}, is_quick=is_quick).write(path, overwrite=True)


def _joined(experiment: Experiment, path: Path, entries: Mapping[str, Entry], *, is_quick: bool) -> Kept:
    """The outcomes, with those of the file that is there; refused where that is of another table."""
    from lehr.papers.store import Kept

    about = {"what": experiment.title, "paper": experiment.paper, "name": experiment.name}
    packed = Kept(**about, entries=entries, is_quick=is_quick)
    return Kept.read(path).joined(packed) if path.exists() else packed


# --- What is shown --------------------------------------------------------------------------------------------------


def _part(experiment: Experiment, jobs: Sequence[Job], outcomes: Outcomes, size: Size) -> Part:
    from lehr.papers.job import key_of
    from lehr.papers.page import Part
    from lehr.papers.words import labelled

    keys = {key_of(job) for job in jobs}
    shown = labelled(experiment.shown(outcomes, size), is_quick=size.is_quick)
    return Part(experiment=experiment, shown=shown, done=len(keys & outcomes.by_key.keys()), jobs=len(keys))


def _write_page(path: Path, parts: Sequence[Part], paper: str, *, is_quick: bool, overwrite: bool) -> None:
    from lehr.files import whole_file
    from lehr.papers import page
    from lehr.papers.presets import PAPERS

    _, title = PAPERS[paper]
    whole_file.write(path, page.render(parts, title=title, is_quick=is_quick), overwrite=overwrite)


def _answer_json(
    paper: str, parts: Sequence[Part], failures: dict[str, str], *, is_quick: bool, written: Sequence[Path]
) -> None:
    from lehr.papers.words import to_json

    answering.as_json(
        {
            "paper": paper,
            "is_quick": is_quick,
            "experiments": [
                {
                    **_about(part.experiment),
                    "jobs": part.jobs,
                    "done": part.done,
                    **to_json(part.shown),
                }
                for part in parts
            ],
            "failed": failures,
            "written": [str(path) for path in written],
        }
    )


def _answer(parts: Sequence[Part], failures: dict[str, str], *, written: Sequence[Path]) -> None:
    from lehr.papers.words import headings, with_remarks

    for part in parts:
        done = f" ({part.done} of {part.jobs} runs done)" if part.jobs else ""
        answering.line(f"{part.experiment.name}: {part.experiment.title}{done}")
        for table in part.shown.tables:
            rows, remarks = with_remarks(table)
            is_number = [column.kind != "text" for column in table.columns]
            answering.numbers(table.title, headings(table), rows, is_number=is_number)
            for note in (*remarks, *table.notes):
                answering.line(f"  {note}")
        for note in part.shown.notes:
            answering.line(note)
        if part.shown.charts:
            answering.line(f"{len(part.shown.charts)} charts: see them with --to FILE.html")
        answering.line()
    for key, error in failures.items():
        answering.line(f"failed, and run again next time: {key}: {answering.printable(error)}")
    for path in written:
        answering.line(f"{answering.printable(str(path))}: written")

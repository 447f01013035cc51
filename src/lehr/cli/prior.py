"""``lehr prior``: train weights on images from random processes, for private training to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lehr.cli import common
from lehr.errors import InvalidValue

_MAKE = "  lehr prior make --to prior --set model.widths=[8,8,8] --images 20 --steps 2 --batch-size 8\n"
_SHOW = "  lehr prior show prior\n"

app = common.group_app("Train weights to start from on random images.", _MAKE, _SHOW)


@app.command(epilog=common.example(_MAKE))
def make(
    to: Annotated[Path, Option(metavar="FOLDER", help="Folder for the prior. A prior begun there is continued.")],
    network: Annotated[str, Option(help="Network by name; its last layer must be linear.")] = "resnet9",
    image_side: Annotated[int, Option(help="Side of the network's images, in pixels.")] = 32,
    channels: Annotated[int, Option(help="3 for colour, 1 for grey.")] = 3,
    kinds: Annotated[
        str, Option(metavar="NAME,...", help="Random processes, in equal shares: oriented, dead-leaves, pink-noise.")
    ] = "oriented,oriented,oriented,dead-leaves",
    images: Annotated[int, Option(help="Number of random images.")] = 60_000,
    steps: Annotated[int, Option(help="Number of training steps.")] = 8_000,
    batch_size: Annotated[int, Option(help="Images per step; two views are taken of each.")] = 512,
    seed: Annotated[int, Option(help="Decides images, first weights and training.")] = 0,
    device: Annotated[str | None, Option(help="cpu or cuda.")] = None,
    settings: common.Settings = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Train a prior on images that show nothing real. No record is read, so it costs no privacy.

    The defaults are for a GPU. On a CPU, train a small network on fewer images, as in the example. Arguments of the
    network are given by --set. `lehr train --prior FOLDER` starts from the prior.
    """
    from lehr.reports.progress import Screen
    from lehr.training.prepare import check_device
    from lehr.training.prior import PriorSettings, make_prior

    tables = common.parse_settings(settings or ())
    if set(tables) - {"model"}:
        raise InvalidValue("set", allowed="arguments of the network, such as model.widths=[8,16,32]", given=[*tables])
    chosen = PriorSettings(
        network=network,
        arguments={"in_channels": channels, **tables.get("model", {})},
        image_side=image_side,
        channels=channels,
        kinds=tuple(kind.strip() for kind in kinds.split(",")),
        images=images,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
    )
    screen = None if quiet or json else Screen()
    if screen is not None:
        screen.say(f"{images:,} random images, then {steps:,} steps; Ctrl-C stops, and the same command continues")

    def report(step: int, steps: int, loss: float) -> None:
        if screen is not None and (step % max(1, steps // 20) == 0 or step == steps):
            screen.say(f"step {step:,} of {steps:,}, loss {loss:.3f}")

    with common.resumable():
        made = make_prior(chosen, to=to, device=check_device(device), report=report)
    common.print_answer({"prior": str(to), **made.description}, f"{to}: {made}", json=json)


@app.command(epilog=common.example(_MAKE, _SHOW))
def show(
    prior: Annotated[Path, Argument(metavar="FOLDER", help="Folder of a prior.")], json: common.Json = False
) -> None:
    """Show how a prior was made, and check that its weights are those."""
    from lehr.training.prior import Prior

    found = Prior.load(prior)
    settings = found.description["settings"]
    rows = {
        "network": f"{settings['network']} {settings['arguments']}",
        "images": f"{settings['images']:,} of {settings['channels']} × {settings['image_side']}²",
        "random processes": ", ".join(settings["kinds"]),
        "training": f"{settings['steps']:,} steps of {settings['batch_size']}, seed {settings['seed']}",
        "weights": found.description["weights"],
        "made with": ", ".join(f"{name} {value}" for name, value in found.description["made_with"].items()),
    }
    if json:
        common.print_json(dict(found.description))
    else:
        common.print_facts("Prior", rows)


prior_command = app

"""``lehr recipe``: the recipes of ``lehr train --recipe``, and what each decides for given records."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from lehr import validate
from lehr.cli import common
from lehr.config import RunConfig
from lehr.errors import InvalidValue

_LIST = "  lehr recipe list\n"
_SHOW = "  lehr recipe show auto --dataset mnist --epsilon 3\n"

app = common.group_app("List recipes, and show what one decides.", _LIST, _SHOW)


@app.command("list", epilog=common.example(_LIST))
def list_recipes(json: common.Json = False) -> None:
    """List the recipes."""
    from lehr.recipes import RECIPES

    shapes = [{"name": each.name, "summary": each.summary, "public": each.public} for each in RECIPES.values()]
    if json:
        common.print_json({"recipes": shapes})
    else:
        rows = [(each.name, each.summary, each.public) for each in RECIPES.values()]
        common.print_table("Recipes", ("name", "for", "uses besides the records"), rows)


@app.command(epilog=common.example(_SHOW))
def show(
    name: Annotated[str, Argument(help="A recipe, or auto.")],
    epsilon: Annotated[float, Option(help="The ε of the run.")],
    dataset: Annotated[str | None, Option(help="A built-in data set.")] = None,
    shape: Annotated[str | None, Option(metavar="C,H,W", help="Shape of a record, if it is your own data.")] = None,
    records: Annotated[int | None, Option(help="Number of your own records.")] = None,
    gpu: Annotated[bool, Option("--gpu", help="What it decides for a run on a GPU.")] = False,
    prior: Annotated[bool, Option("--prior", help="What it decides for a run that starts from a prior.")] = False,
    json: common.Json = False,
) -> None:
    """Show what a recipe decides, as a configuration for `lehr train`. Only public numbers are used."""
    from lehr.data.catalogue import data_set_info
    from lehr.recipes import with_recipe

    config = RunConfig().with_options(recipe=name, epsilon=epsilon)
    if dataset is not None:
        common.refuse("dataset", shape=shape, records=records)
        known = data_set_info(dataset)
        config = config.with_options(dataset=dataset)
        size, number = known.shape, known.records
    else:
        size, number = _shape(common.required(shape=shape)), common.required(records=records)
    made, _ = with_recipe(config, shape=size, records=number, is_on_gpu=gpu, has_prior=prior)
    common.print_answer(made.tables(), made.to_toml().rstrip("\n"), json=json)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(validate.count(shape=int(part)) for part in text.split(","))
    except ValueError:
        raise InvalidValue("shape", allowed="whole numbers and commas, such as 1,28,28", given=text) from None


recipe_command = app

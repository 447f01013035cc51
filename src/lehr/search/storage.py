"""The database of a study: a file in its folder, or one that several machines share.

SQLite serves processes of one machine. Machines share a study over ``postgresql+psycopg://user@host/name``, with
``pip install 'psycopg[binary]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from lehr.errors import InvalidValue, LehrError, StoreError

FILE = "study.db"
SECONDS_TO_WAIT = 120  # for other processes that write to the same file


def url_for(directory: Path, given: str | None = None) -> str:
    """The address of the database: the one that is given, or a file in the folder of the study."""
    if given is None:
        return URL.create("sqlite", database=str((directory / FILE).absolute())).render_as_string()
    try:
        return make_url(given).render_as_string(hide_password=False)
    except SQLAlchemyError as error:
        allowed = "an address such as sqlite:///study.db or postgresql+psycopg://user@host/name"
        raise InvalidValue("storage", allowed=allowed, given="something else") from error  # it may hold a password


def shown(url: str) -> str:
    """The address without its password."""
    return make_url(url).render_as_string(hide_password=True)


def opened(url: str) -> optuna.storages.RDBStorage:
    """The database, with the tables of Optuna in it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # how a search goes is told by ourselves
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=_settings(url))
    except ImportError as error:
        driver = make_url(url).drivername
        raise StoreError(f"cannot use {shown(url)}: no driver for {driver} is installed ({error})") from error
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise StoreError(f"cannot use {shown(url)}: {reason}") from error


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn whatever Optuna makes of a database that somebody has changed into a ``StoreError``."""
    try:
        yield
    except LehrError:
        raise
    except Exception as error:
        raise StoreError(f"cannot use {what}: its database is damaged ({type(error).__name__}: {error})") from error


def _settings(url: str) -> dict[str, Any]:
    """A connection is asked whether it is still there before it is used: between two evaluations hours may pass."""
    if make_url(url).get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": SECONDS_TO_WAIT}}
    return {"pool_pre_ping": True}

"""Acceptances from their JSON form, through one closed table: a name found in a file never picks code.

>>> from_json({"kind": "always"})
Always()
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed
from lehr.errors import InvalidValue

AnyAcceptance: TypeAlias = "Always | Annealed"
_TYPE_OF: dict[str, Any] = {"always": Always, "annealed": Annealed}


def from_json(shape: object) -> AnyAcceptance:
    """The acceptance of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused."""
    fields = dict(shape) if isinstance(shape, dict) else {}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _TYPE_OF:
        raise InvalidValue("acceptance", allowed="an object whose kind is one of " + ", ".join(_TYPE_OF), given=shape)
    expected = {field.name for field in dataclasses.fields(_TYPE_OF[kind])}
    if fields.keys() != expected:
        raise InvalidValue(f"acceptance {kind}", allowed=f"with the fields {sorted(expected)}", given=sorted(fields))
    acceptance: AnyAcceptance = _TYPE_OF[kind](**fields)
    return acceptance

"""Every exception that Lehr raises on purpose.

LehrError
├── InvalidValue           an argument: its name, what is allowed, what was given (also a ValueError)
├── MissingExtra           an optional package that is not installed, and the extra that installs it
├── UnsupportedEvent       an event that the accountant does not support
├── AccountantFailed       the accountant supports the event, but has no bound at this setting
├── Unreachable            a calibration target outside the reachable range
├── NotPrivate             a layer that cannot be trained privately, and what to use instead
├── BadRecord              a record that cannot be trained on: which one, and why
├── Diverged               a training run whose weights are no longer finite
├── RankLost               a process of a distributed run has failed or does not answer
├── BudgetExceeded         a reservation that would exceed a data set's budget
├── StoreError             a ledger or budget file that cannot be used; the file is left as it was
│   ├── ForeignFile        it was not written by Lehr, or by another part of Lehr, or by a newer one
│   └── DamagedFile        it was written by Lehr and has been truncated or changed since
└── CertificateMismatch    a certificate whose numbers do not follow from its events
"""

from __future__ import annotations


class LehrError(Exception):
    """The root: ``except LehrError`` catches everything that Lehr raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # An error of a worker process is rebuilt in its parent, where keyword-only arguments would be missing.
        return _rebuilt, (type(self), self.args), vars(self)


class InvalidValue(LehrError, ValueError):
    """An argument outside its allowed range. The message has its name, what is allowed, and what was given."""

    def __init__(self, name: str, *, allowed: str, given: object) -> None:
        self.name = name
        self.allowed = allowed
        self.given = given
        super().__init__(f"{name} must be {allowed}; given: {given!r}")


class MissingExtra(LehrError, ImportError):
    """An optional package is not installed. The message has the command that installs it."""

    def __init__(self, package: str, *, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed: pip install 'lehr[{extra}]'")


class UnsupportedEvent(LehrError):
    """The accountant does not support the event."""

    def __init__(self, *, accountant: str, event: object, reason: str) -> None:
        self.accountant = accountant
        self.event = event
        self.reason = reason
        super().__init__(f"the accountant {accountant!r} cannot count {event}: {reason}")


class AccountantFailed(LehrError):
    """The accountant supports the event but has no sound bound at this setting."""

    def __init__(self, *, accountant: str, reason: str) -> None:
        self.accountant = accountant
        self.reason = reason
        super().__init__(f"the accountant {accountant!r} gives no bound here: {reason}")


class Unreachable(LehrError):
    """No setting in the allowed range reaches the target of a calibration."""


class NotPrivate(LehrError):
    """A layer that cannot be trained privately. The message has its path, the reason, and an alternative."""

    def __init__(self, *, layer: str, reason: str, instead: str) -> None:
        self.layer = layer
        self.reason = reason
        self.instead = instead
        super().__init__(f"{layer} cannot be trained privately: {reason}. Instead: {instead}")


class BadRecord(LehrError):
    """A record that cannot be trained on. The message says which and why; it is for the owner of the data alone."""

    def __init__(self, record: object, *, reason: str) -> None:
        self.record = record
        self.reason = reason
        super().__init__(f"record {record} cannot be used: {reason}")


class Diverged(LehrError):
    """The weights of a run are no longer finite. What was released until then stays charged."""


class RankLost(LehrError):
    """A process of a distributed run has failed or does not answer. What was charged stays charged."""


class BudgetExceeded(LehrError):
    """The reservation would exceed the budget. Nothing was reserved, and no record was used."""


class StoreError(LehrError):
    """A ledger or budget file that cannot be used. The file is left as it was found."""


class ForeignFile(StoreError):
    """The file was not written by Lehr, or by another part of it, or by a newer version of it."""


class DamagedFile(StoreError):
    """The file was written by Lehr and has been truncated or changed since."""


class CertificateMismatch(LehrError):
    """The numbers of a certificate do not follow from the events that it lists."""


def _rebuilt(kind: type[LehrError], args: tuple[object, ...]) -> LehrError:
    return kind.__new__(kind, *args)

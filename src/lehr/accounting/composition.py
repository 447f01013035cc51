"""The sum of many privacy losses, composed in two ways.

``compose_by_transform`` uses a Fourier transform, with full relative precision in the tail. A plain FFT convolution has
absolute errors of about 1e-16 times the number of steps: at 10⁷ steps and δ = 1e-12 the tail that decides ε is below
them. So the masses are first tilted by e^(tilt·loss), with the tilt at which that tail sits in the middle of the tilted
distribution; the convolution is done there, and the tilt is undone afterwards (Esscher 1932; for the FFT, see Grübel &
Hermesmeier 1999). One transform serves a range of step counts: it is raised to any power in the range. The sum of many
losses is smooth, so few frequencies are left in it, and the sums over the tail that make up δ are taken frequency by
frequency.

``compose_by_pairs`` is for steps that rarely sample a record. Almost all losses are then tiny and a few are large: no
evenly spaced grid holds both, and the rounding of a Fourier transform exceeds δ. The points of the grid are
scale·sinh(i·WIDTH): evenly spaced within ``scale`` of zero, in constant ratio beyond. Products of masses are summed
directly; nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from lehr.accounting.privacy_loss import Floats, GridLoss, PrivacyLoss, SampledGaussianLoss, split

Parts = Sequence[tuple[PrivacyLoss, int]]
Complexes = NDArray[np.complex128]

LOG_TILTED_TAIL = math.log(1e-10)  # probability, under the tilted law, of falling outside of the window on one side
MAX_GRID_POINTS = 1 << 22
MAX_FREQUENCIES = 1 << 18  # a query costs as many complex exponentials, the grid itself only two transforms
_TILT_RATIO = 1.1  # tilts are looked up on a geometric grid, so that neighbouring queries share their moments
_ROUNDING_MARGIN = 1e-6  # relative, of δ: for the rounding of masses, which 10⁸ steps multiply
_ROUNDING_UNIT = 2.0**-52
_ROUNDINGS_OF_A_TRANSFORM = 16  # of 2⁻⁵² each: more than the logarithm of the longest one, in half units
_CLEAR = 1e3  # what decides must be this many times its rounding, or a gentler tilt is tried
_MOST_GENTLER_TILTS = 8
_LARGEST_EXPONENT = 700.0  # of a double, nearly
_LOG_NEGLIGIBLE = -90.0  # a frequency this weak changes no double
_FIRST_COARSENESS = 32  # the first grid has this many times fewer points than the finest
_SMALL_EPSILON = 0.01  # below it the precision that is asked for is absolute
_FEWEST_POSITIONS = 4096  # a transform this short costs no more than a few sums
_ALMOST_ZERO = 1e-300


def compose_by_transform(
    parts: Parts,
    *,
    delta: float,
    tolerance: float,
    fewest: int,
    most: int,
    larger: Callable[[int], float] = lambda repeats: 0.0,
) -> Callable[[int], float]:
    """ε as a function of how often all parts are repeated, from ``fewest`` to ``most`` times: an upper bound.

    The grid is refined until, at both ends of the range, that changes ε by no more than ``tolerance``·(ε + 0.01) or ε
    is below one that is known to be ``larger``; or until ``MAX_GRID_POINTS`` or ``MAX_FREQUENCIES`` are reached.
    """
    coarse: _Composition | None = None
    fine = _clear_composition(parts, delta, tolerance, fewest, most)

    def is_fine(repeats: int) -> bool:
        epsilon = fine.epsilon(repeats)
        change = math.inf if coarse is None else coarse.epsilon(repeats) - epsilon
        # Never for an infinite one: it has no change.
        return epsilon <= larger(repeats) or change <= tolerance * (epsilon + _SMALL_EPSILON)

    while not (is_fine(fewest) and is_fine(most)):
        if fine.spacing / 2 < fine.window.finest_spacing or fine.frequencies > MAX_FREQUENCIES:
            break
        coarse, fine = fine, _Composition(fine.window, fine.spacing / 2)
    return fine.epsilon


def _clear_composition(parts: Parts, delta: float, tolerance: float, fewest: int, most: int) -> _Composition:
    """On a first grid, with the strongest tilt at which what decides is clear of rounding, or the best one."""
    best: _Composition | None = None
    for gentler in range(_MOST_GENTLER_TILTS):
        window = Window(parts, delta=delta, fewest=fewest, most=most, gentler=gentler)
        spacing = max(window.spacing_for(tolerance), _FIRST_COARSENESS * window.finest_spacing)
        composition = _Composition(window, _power_of_two_above(spacing))
        if composition.is_clear(fewest) and composition.is_clear(most):
            return composition
        if best is not None and best.epsilon(most) <= composition.epsilon(most) < math.inf:
            return best
        best = composition
    assert best is not None
    return best


class Window:
    """The tilt for the largest number of repeats, and losses that frame every number of them.

    Under the law tilted by e^(tilt·loss) the sum of many losses gathers around its mean. The tilt puts that mean where
    ε lies: it minimises the Chernoff bound on ε, so that tilt + 1 is the order of the best Rényi bound. These numbers
    only steer the precision of a composition; none decides its validity.
    """

    def __init__(self, parts: Parts, *, delta: float, fewest: int, most: int, gentler: int = 0) -> None:
        """A tilt ``gentler`` times halved suits losses of which a single large one, not their sum, decides."""
        self.parts, self.delta, self.fewest, self.most = parts, delta, fewest, most
        self.tilt = tilt = self._best_tilt() / 2**gentler
        here = self._log_moment(tilt)
        # By Chernoff bounds at several further tilts; the last ones suit losses that are bounded on one side.
        lows = (
            (fewest * (here - self._log_moment(tilt - shift)) + LOG_TILTED_TAIL) / shift
            for shift in (*self._shifts(fewest), 0.5 * tilt, tilt)
        )
        highs = (
            ((most * (self._log_moment(tilt + shift) - here) - LOG_TILTED_TAIL) / shift, tilt + shift)
            for shift in (*self._shifts(most), 0.1 * tilt, 0.3 * tilt, tilt)
        )
        self.low = max(lows)
        self.high, self.further_tilt = min(highs)
        widest = max(self.high - self.low, *(part.largest - part.smallest for part, _ in parts))
        self.finest_spacing = widest / MAX_GRID_POINTS

    def spacing_for(self, tolerance: float) -> float:
        """A grid adds spacing²/6 of variance a step; this much of it changes ε by about ``tolerance``·ε."""
        steps = self.most * sum(count for _, count in self.parts)
        return math.sqrt(12 * tolerance * self._chernoff(self.tilt) / (steps * (self.tilt + 1)))

    def _shifts(self, repeats: int) -> list[float]:
        """Further tilts for Chernoff bounds: the best one for a normal law, and gentler ones for heavier tails."""
        deviation = math.sqrt(repeats * self._variance(self.tilt))
        return [scale * math.sqrt(-2 * LOG_TILTED_TAIL) / deviation for scale in (0.03, 0.1, 0.3, 1.0)]

    def _best_tilt(self) -> float:
        """The minimum of the Chernoff bound: the best of every sixteenth tilt, then by strides that halve."""

        def value(index: int) -> float:
            return self._chernoff(_TILT_RATIO**index)

        guess = 0.5 * math.log(-2 * math.log(self.delta) / (self.most * self._variance(0.0)))
        first = round(guess / math.log(_TILT_RATIO)) - 240
        last = first + 280
        index, stride = min(range(first, last + 1, 16), key=value), 8
        while stride:
            index = min((max(index - stride, first), index, min(index + stride, last)), key=value)
            stride //= 2
        return float(_TILT_RATIO**index)

    def _chernoff(self, tilt: float) -> float:
        return (self.most * self._log_moment(tilt) - math.log(self.delta)) / tilt

    def _log_moment(self, tilt: float) -> float:
        return sum(count * part.log_moment(tilt) for part, count in self.parts)

    def _variance(self, tilt: float) -> float:
        return sum(count * part.variance(tilt) for part, count in self.parts)


class _Composition:
    """The transform of one repeat of all parts on one grid, and ε for any number of repeats."""

    def __init__(self, window: Window, spacing: float) -> None:
        self.window, self.spacing = window, spacing
        self._tilt, self._further_tilt = window.tilt, window.further_tilt
        grids = [(part.on_grid(spacing), count) for part, count in window.parts]
        self._log_moment = sum(count * _log_moment(grid, self._tilt) for grid, count in grids)
        self._further_log_moment = sum(count * _log_moment(grid, self._further_tilt) for grid, count in grids)
        self._log_finite_mass = sum(count * math.log1p(-grid.infinite_mass) for grid, count in grids)
        self._largest = sum(count * float(grid.losses[-1]) for grid, count in grids)
        rise = window.most * (self._further_log_moment - self._log_moment)
        chernoff_high = (rise - LOG_TILTED_TAIL) / (self._further_tilt - self._tilt)
        largest = window.most * self._largest
        self._high = chernoff_high if chernoff_high < largest - spacing else largest  # an end that rounding may hit
        self._first = math.floor(window.low / spacing)
        self._size = int(_power_of_two_above(max(self._high / spacing - self._first + 2, 16)))
        self._offset = 0
        self._steps = sum(count for _, count in grids)
        self._log_spectrum = self._transform(grids, window.fewest)
        self.frequencies = len(self._log_spectrum)  # those that matter
        decays = (self._tilt * spacing, (self._tilt + 1) * spacing)
        self._series = [_DecaySeries(self.frequencies, self._size, decay) for decay in decays]
        self._known: dict[int, tuple[float, bool]] = {}

    def epsilon(self, repeats: int) -> float:
        """An upper bound on ε of so many repeats."""
        return self._solve(repeats)[0]

    def is_clear(self, repeats: int) -> bool:
        """Whether what decides ε of so many repeats is far above the rounding of the transform."""
        return self._solve(repeats)[1]

    def _solve(self, repeats: int) -> tuple[float, bool]:
        if repeats not in self._known:
            infinite = -math.expm1(repeats * self._log_finite_mass)
            lost = self._beyond_window(repeats) + infinite
            self._known[repeats] = self._invert(repeats, self.window.delta * (1 - _ROUNDING_MARGIN) - lost)
        return self._known[repeats]

    def _beyond_window(self, repeats: int) -> float:
        """A bound on the mass above the window: none, or Chernoff's."""
        if repeats * self._largest <= self._high:
            return 0.0
        return math.exp(min(repeats * self._further_log_moment - self._further_tilt * self._high, 0.0))

    def _transform(self, grids: Sequence[tuple[GridLoss, int]], fewest: int) -> Complexes:
        """Logarithms of the tilted transform, up to the last frequency that still matters."""
        total = np.zeros(self._size // 2 + 1, dtype=np.complex128)
        for grid, count in grids:
            exponents = self._tilt * grid.losses - _log_moment(grid, self._tilt)
            tilted = grid.masses * np.exp(np.minimum(exponents, _LARGEST_EXPONENT))  # only an empty point has more
            centre = round(float(tilted @ np.arange(len(tilted))))  # small phases keep the power precise
            positions = np.arange(-centre, len(tilted) - centre) % self._size
            spectrum = fft.rfft(np.bincount(positions, weights=tilted, minlength=self._size), workers=2)
            strong = np.flatnonzero(np.abs(spectrum) > math.exp(_LOG_NEGLIGIBLE / (fewest * count)))
            total = total[: strong[-1] + 1]
            spectrum = spectrum[: len(total)]
            total += count * np.log(np.where(spectrum == 0, _ALMOST_ZERO, spectrum))
            self._offset += count * (grid.first + centre)
        return total

    def _invert(self, repeats: int, delta: float) -> tuple[float, bool]:
        """The least ε >= 0 at which the hockey-stick divergence is at most ``delta``, and whether it is clear.

        At the i-th loss of the window it is above(i) − discounted(i), the sums over j >= i of mass_j and of
        mass_j·e^(loss_i − loss_j). Everything is kept in units of e^(repeats·log_moment − tilt·loss_i).
        """
        if not delta > 0:
            return math.inf, False
        start = (self._first - repeats * self._offset) % self._size
        spectrum = np.exp(repeats * self._log_spectrum + _turned(start, self.frequencies, self._size))
        above, discounted = (_TailSum(spectrum, series) for series in self._series)
        rounding = _ROUNDING_UNIT * (_ROUNDINGS_OF_A_TRANSFORM + repeats * self._steps) * (above.size + discounted.size)

        def level(index: float | Floats) -> Floats:
            exponent = self._tilt * self.spacing * (self._first + index) - repeats * self._log_moment
            return np.asarray(delta * np.exp(np.minimum(exponent, _LARGEST_EXPONENT)))

        # Far to the left both sides are below the transform's rounding, so the crossing is looked for from the right.
        positions = self._series[0].positions
        outside = np.flatnonzero(~(above.at_positions - discounted.at_positions + rounding <= level(positions)))
        first_inside = int(outside[-1]) + 1 if len(outside) else 0
        if first_inside == len(positions):
            return math.inf, False
        low, index = int(positions[max(first_inside - 1, 0)]), int(positions[first_inside])
        while index - low > 1:
            middle = (low + index) // 2
            within = above.at(middle) - discounted.at(middle) + rounding <= level(middle)
            low, index = (low, middle) if within else (middle, index)
        loss = (self._first + index) * self.spacing
        is_clear = float(level(index)) > _CLEAR * rounding and (index > 0 or loss <= 0)
        excess = above.at(index) + rounding - float(level(index))
        if index > 0 and excess > 0:  # between the two grid points the curve is linear in e^ε
            loss += max(math.log(excess / discounted.at(index)), -self.spacing)  # the point before was not within
        return max(0.0, loss), is_clear


class _DecaySeries:
    """For each frequency the geometric series Σ e^(u·(i·angle − decay)) over u = 0, 1, …, the same for every spectrum.

    ``positions`` are evenly spaced indices of the window, at least as many as the frequencies tell apart.
    """

    def __init__(self, frequencies: int, size: int, decay: float) -> None:
        self.size, self.decay = size, decay
        self.sums = -1 / np.expm1(_turned(1, frequencies, size) - decay)
        self.stride = size // min(int(_power_of_two_above(max(4 * frequencies, _FEWEST_POSITIONS))), size)
        self.positions = np.arange(0, size, self.stride, dtype=np.float64)
        self.decay_to_the_end = np.exp(-decay * (size - self.positions))


class _TailSum:
    """Σ mass_(i+u)·e^(−decay·u) over u = 0, 1, … to the end of the window, for masses given by their spectrum.

    Summed frequency by frequency it is a geometric series. Over the endless periodic continuation the sum starting at
    i has one spectrum for all i; what lies behind the window's end is the sum starting at its end, decayed.
    """

    def __init__(self, spectrum: Complexes, series: _DecaySeries) -> None:
        self._series = series
        self._spectrum = spectrum * series.sums
        self.size = 2 * float(np.abs(self._spectrum).sum()) / series.size  # no sum is larger
        periodic = fft.irfft(self._spectrum, len(series.positions), workers=2) / series.stride
        self._beyond = float(periodic[0])
        self.at_positions: Floats = periodic - self._beyond * series.decay_to_the_end

    def at(self, index: int) -> float:
        """The sum starting at one index."""
        series = self._series
        if index % series.stride == 0:
            return float(self.at_positions[index // series.stride])
        waves = (self._spectrum * np.exp(_turned(index, len(self._spectrum), series.size))).real
        periodic = float(2 * waves.sum() - waves[0]) / series.size  # every frequency but the zeroth has a mirror image
        return periodic - self._beyond * math.exp(-series.decay * (series.size - index))


def _turned(index: int, frequencies: int, size: int) -> Complexes:
    """i times the angle of each frequency at an index, taken modulo a turn in whole numbers, which loses no digit."""
    return np.asarray(2j * math.pi / size * (index * np.arange(frequencies) % size), dtype=np.complex128)


def _log_moment(grid: GridLoss, tilt: float) -> float:
    return float(special.logsumexp(tilt * grid.losses, b=grid.masses))


def _power_of_two_above(value: float) -> float:
    return float(2.0 ** math.ceil(math.log2(value)))


WIDTH = 0.02
LARGEST_PAIRED_NOISE = 1e5  # beyond it rounding hides the difference of the masses with and without a record
LARGEST_PAIRED_LOSS = 64.0  # larger losses count as infinite: at ε below one they differ from it by e⁻⁶³
_NEGLIGIBLE = 1e-9  # of δ: what all steps together may call infinitely lossy, to keep the grid short
_HALVINGS = 110  # of an interval of LARGEST_LOSS, down to 1e-31


class _Law(NamedTuple):
    scale: float
    losses: Floats
    masses: Floats
    infinite_mass: float


def compose_by_pairs(
    parts: Sequence[tuple[SampledGaussianLoss, int]], *, delta: float, most: int
) -> Callable[[int], float]:
    """ε as a function of how often all parts are repeated, up to ``most`` times: an upper bound."""
    negligible = _NEGLIGIBLE * delta / (most * sum(count for _, count in parts))
    known: dict[tuple[int, int], _Law] = {}

    def power(part: int, count: int) -> _Law:
        if (part, count) not in known:
            if count == 1:
                loss = parts[part][0]
                points = _points(loss.typical, loss.smallest, loss.largest)
                known[part, 1] = _shortened(_Law(loss.typical, points, *loss.on_points(points)), negligible)
            else:
                half = power(part, count // 2)
                even = _compose(half, half, negligible)
                known[part, count] = _compose(even, power(part, 1), negligible) if count % 2 else even
        return known[part, count]

    def epsilon(repeats: int) -> float:
        whole = power(0, repeats * parts[0][1])
        for part in range(1, len(parts)):
            whole = _compose(whole, power(part, repeats * parts[part][1]), negligible)
        return _invert(whole, delta * (1 - _ROUNDING_MARGIN))

    return epsilon


def _compose(one: _Law, other: _Law, negligible: float) -> _Law:
    """The law of the sum, each pair's mass split between the two points next to it."""
    scale = math.hypot(one.scale, other.scale)
    points = _points(scale, one.losses[0] + other.losses[0], one.losses[-1] + other.losses[-1])
    losses = np.add.outer(one.losses, other.losses).ravel()
    masses = np.multiply.outer(one.masses, other.masses).ravel()
    infinite = one.infinite_mass + other.infinite_mass + float(masses[losses > points[-1]].sum())
    masses[losses > points[-1]] = 0.0
    composed = split(np.clip(losses, points[0], points[-1]), masses, points)
    return _shortened(_Law(scale, points, composed, infinite), negligible)


def _shortened(law: _Law, negligible: float) -> _Law:
    """The same without negligible masses at its ends: the upper ones count as infinite, the lower ones are raised."""
    first = int(np.searchsorted(np.cumsum(law.masses), negligible))
    last = len(law.masses) - int(np.searchsorted(np.cumsum(law.masses[::-1]), negligible))
    masses = law.masses[first:last].copy()
    masses[0] += law.masses[:first].sum()
    return _Law(law.scale, law.losses[first:last], masses, law.infinite_mass + float(law.masses[last:].sum()))


def _points(scale: float, low: float, high: float) -> Floats:
    """The points of a grid from ``low`` to ``high``, neither beyond ``LARGEST_PAIRED_LOSS``."""
    low, high = max(low, -LARGEST_PAIRED_LOSS), min(high, LARGEST_PAIRED_LOSS)
    first, last = math.floor(math.asinh(low / scale) / WIDTH), math.ceil(math.asinh(high / scale) / WIDTH)
    return np.asarray(scale * np.sinh(WIDTH * np.arange(first, last + 1)))


def _invert(law: _Law, delta: float) -> float:
    """The least ε >= 0 at which the hockey-stick divergence is at most ``delta``."""

    def is_within(epsilon: float) -> bool:
        divergence = float(np.maximum(-np.expm1(epsilon - law.losses), 0.0) @ law.masses)
        return divergence + law.infinite_mass <= delta

    low, high = 0.0, max(float(law.losses[-1]), 0.0)
    if is_within(low) or not is_within(high):
        return 0.0 if is_within(low) else math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high

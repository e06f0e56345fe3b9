"""The search space: what a setting of the knobs means for verl, and which settings verl refuses.

Runs in the driver. A setting is a mapping from every knob of the sweep to a value. It is
*canonical*: a knob that does not act in it (its ``when`` does not hold, or the engine would ignore
it there) has the base job's value, so that two settings are the same job exactly when their keys
are equal. Numeric knobs stay numeric for the sampler, over the whole range between their smallest
and largest value; :meth:`Space.snap` brings a drawn point to the nearest allowed one.
"""

import itertools
import math
from collections import ChainMap
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain import MAX_INTEGER_RANGE, Domain
from autotune.errors import BadInputError, nearest
from autotune.knobs import KnobValue
from autotune.verl_bridge.job import Leaves
from autotune.verl_bridge.rules import Rule

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Setting = dict[str, KnobValue]

MAX_ENUMERATED = 20_000
"""Largest number of points that is enumerated; above it, points are sampled."""
NUM_SAMPLED = 2_000
NUM_DRAWS = 300
"""Attempts to draw a valid point at random before the points are enumerated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSummary:
    """How many settings a space has and which of verl's rules exclude how many of them."""

    num_points: int | None
    """Distinct settings, valid or not; None when a knob is continuous."""
    num_checked: int
    """Settings that the counts below are about; equal to ``num_points`` where all were counted."""
    num_valid: int
    """Settings among them that verl accepts."""
    excluded: Mapping[str, int]
    """Rule -> settings that break it; a setting that breaks two counts for both."""
    examples: Mapping[str, str]
    """Rule -> what is wrong with the first setting that breaks it."""
    method: str
    """How the settings were counted, in words."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A canonical setting with what follows from it."""

    setting: Setting
    active: frozenset[str]
    leaves: Leaves


class Space:
    """The settings of one sweep.

    Args:
        domains: Knob -> domain, in the order of the sweep file.
        base_leaves: The base job's configuration, flattened.
        rules: Conditions that a setting's configuration must meet.
        sources: Keys that take their value from another key unless they are written themselves
            (verl's interpolations), see :func:`autotune.verl_bridge.overrides.sources`.

    Raises:
        BadInputError: A knob that this job ignores, or a condition that cannot be.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        base_leaves: Leaves,
        rules: Sequence[Rule],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._domains = dict(domains)
        self._base_leaves = base_leaves
        self._rules = tuple(rules)
        self._keys = {name: domain.knob.keys_in(base_leaves) for name, domain in domains.items()}
        self._base = {
            name: domain.knob.from_config(base_leaves) for name, domain in domains.items()
        }
        self._neutral = self._find_neutral()
        self._refuse_shared_keys()
        self._chains = self._follow(sources or {})
        self._parents = {name: self._find_parents(name) for name in domains}
        self._order = self._sort()
        for name in self._order:
            self._check_acts(name)
        self._baseline = self._resolve(self._neutral).setting
        self._valid: list[Setting] | None = None

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of the sweep's knobs."""
        return tuple(self._domains)

    def domain(self, name: str) -> Domain:
        """Return the values of a knob."""
        return self._domains[name]

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Return one fixed Optuna distribution a knob, with room for the base job's value."""
        return {name: self._distribution(name) for name in self._domains}

    def baseline(self) -> Setting:
        """Return the base job's own setting, part of the space even outside the domains."""
        return dict(self._baseline)

    def snap(self, params: Mapping[str, KnobValue]) -> Setting:
        """Return the allowed setting nearest to ``params``; the baseline itself is allowed."""
        if all(params.get(name) == value for name, value in self._baseline.items()):
            return self.baseline()
        raw = {
            name: domain.nearest(params[name]) if name in params else self._baseline[name]
            for name, domain in self._domains.items()
        }
        return self._resolve(raw).setting

    def active(self, params: Mapping[str, KnobValue]) -> Setting:
        """Return the knobs that act in a setting, with their values."""
        point = self._resolve(params)
        return {name: value for name, value in point.setting.items() if name in point.active}

    def key(self, params: Mapping[str, KnobValue]) -> Hashable:
        """Return an identity of the setting: equal for two settings that are the same job."""
        return self._key(self._resolve(params))

    def overrides(self, params: Mapping[str, KnobValue]) -> list[str]:
        """Return the Hydra overrides that turn the base job into a setting; none for its own."""
        from autotune.verl_bridge.overrides import format_override

        point = self._resolve(params)
        wanted = self._wanted(point.setting, point.active)
        written: dict[str, object] = {}
        for key in self._by_depth(wanted):
            if self._effective(key, written) != wanted[key]:
                written[key] = wanted[key]
        return [
            format_override(key if key in self._base_leaves else f"++{key}", value)
            for key, value in written.items()
        ]

    def leaves(self, params: Mapping[str, KnobValue]) -> Leaves:
        """Return the configuration of a setting's job, flattened, for reading."""
        return self._resolve(params).leaves

    def violations(self, params: Mapping[str, KnobValue]) -> list[str]:
        """Return what verl would refuse in a setting, as ``rule: message``; empty if valid."""
        return [
            f"{name}: {message}" for name, message in self._broken(self._resolve(params)).items()
        ]

    def is_valid(self, params: Mapping[str, KnobValue]) -> bool:
        """Say whether verl accepts a setting."""
        return not self._broken(self._resolve(params))

    def iter_valid(self) -> Iterator[Setting]:
        """Iterate over the valid settings of finite domains, each once."""
        for point in self._enumerate(self._order):
            if not self._broken(point):
                yield point.setting

    def random_valid(
        self, rng: np.random.Generator, exclude: Collection[Hashable] = frozenset()
    ) -> Setting | None:
        """Return a random valid setting whose key is not in ``exclude``.

        None means that there is none; above :data:`MAX_ENUMERATED` points, that no draw found one.
        """
        is_small = self._size(self._order, default=MAX_ENUMERATED + 1) <= MAX_ENUMERATED
        for _ in range(NUM_DRAWS if is_small else 10 * NUM_DRAWS):
            point = self._draw(rng)
            if not self._broken(point) and self._key(point) not in exclude:
                return point.setting
        if not is_small:
            return None
        left = [setting for setting in self.iter_valid() if self.key(setting) not in exclude]
        return left[int(rng.integers(len(left)))] if left else None

    def is_small(self, limit: int) -> bool:
        """Say whether there are at most ``limit`` settings, valid or not."""
        return self._size(self._order, default=limit + 1) <= limit

    def candidates(self, rng: np.random.Generator, limit: int) -> list[Setting]:
        """Return valid settings to choose from: all of them where there are at most ``limit``
        settings, valid or not, else distinct random ones."""
        if self.is_small(limit):
            if self._valid is None:
                self._valid = list(self.iter_valid())
            return list(self._valid)
        points = (self._draw(rng) for _ in range(limit))
        found = {self._key(point): point for point in points}
        return [point.setting for point in found.values() if not self._broken(point)]

    def summary(self) -> SpaceSummary:
        """Count the settings and what excludes them, exactly wherever that can be enumerated.

        Only knobs that a rule reads, or on which others depend, decide; the rest multiply the
        counts.
        """
        deciding = self._deciding()
        others = [name for name in self._order if name not in deciding]
        continuous = [name for name in self._order if self._domains[name].size is None]
        if self._size(deciding, default=MAX_ENUMERATED + 1) > MAX_ENUMERATED:
            return self._sampled_summary(bool(continuous))
        tally = _Tally()
        for point in self._enumerate(deciding):
            active = [name for name in others if name in point.active]
            tally.add(self._broken(point), self._size(active, default=1))
        method = "all settings counted"
        if continuous:
            method = (
                f"all settings counted, each once whatever the value of {', '.join(continuous)}"
            )
        return tally.summary(None if continuous else tally.num_checked, method)

    def check_not_empty(self, summary: SpaceSummary) -> None:
        """Refuse a space without a valid setting besides the baseline.

        Raises:
            BadInputError: With the rules that exclude the settings, how many each, and an example.
        """
        taken = {self.key(self._baseline)}
        if self.random_valid(np.random.default_rng(0), exclude=taken) is not None:
            return
        counts = [
            f"{name} excludes {count} of {summary.num_checked} ({summary.examples[name]})"
            for name, count in summary.excluded.items()
        ]
        why = "; ".join(counts) if counts else "its only setting is the base job's own"
        raise BadInputError(
            f"knobs: no valid setting besides the base job's own: {why}.",
            "Widen the domains or change the base job.",
        )

    # The structure of the space: which knob writes what, and which knobs decide whether another
    # acts.

    def _refuse_shared_keys(self) -> None:
        owner: dict[str, str] = {}
        for name, keys in self._keys.items():
            for key in keys:
                assert key not in owner, f"{name} and {owner[key]} both write {key}"
                owner[key] = name

    def _follow(self, sources: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return leaf -> the knobs' keys that decide its value, nearest first, itself included."""
        writable = {key for keys in self._keys.values() for key in keys}
        chains: dict[str, tuple[str, ...]] = {}
        for leaf in {*writable, *(key for key in sources if key in self._base_leaves)}:
            chain = [leaf]
            while (source := sources.get(chain[-1])) is not None and source not in chain:
                chain.append(source)
            written = tuple(key for key in chain if key in writable)
            if written:
                chains[leaf] = written
        return chains

    def _find_parents(self, name: str) -> tuple[str, ...]:
        """Return the knobs that decide whether ``name`` acts."""
        domain = self._domains[name]
        for other in domain.when:
            self._check_condition(name, other)
        reads = [key for requirement in domain.knob.requires for key in requirement.reads]
        gates = [
            other for other in self._domains if other != name and self._moves(other) & set(reads)
        ]
        return tuple(dict.fromkeys([*domain.when, *gates]))

    def _check_condition(self, name: str, other: str) -> None:
        key, value = f"knobs.{name}.when.{other}", self._domains[name].when[other]
        if other not in self._domains:
            raise BadInputError(
                f"{key}: {other} is not a knob of this sweep.",
                nearest(other, self._domains) or "Add it to knobs.",
            )
        if not self._domains[other].contains(value):
            raise BadInputError(f"{key} is {value!r}, which is not in the domain of {other}.")

    def _moves(self, name: str) -> set[str]:
        """Return the leaves that a knob can change, followers included."""
        keys = set(self._keys[name])
        return {leaf for leaf, chain in self._chains.items() if keys & set(chain)}

    def _sort(self) -> list[str]:
        """Return the knobs with parents before children.

        Raises:
            BadInputError: Knobs that depend on each other in a circle.
        """
        order: list[str] = []
        left = list(self._domains)
        while left:
            ready = [
                name for name in left if all(parent in order for parent in self._parents[name])
            ]
            if not ready:
                shown = ", ".join(f"{name} on {' and '.join(self._parents[name])}" for name in left)
                raise BadInputError(
                    f"knobs.{left[0]}.when: the conditions form a circle: {shown}.",
                    "Remove one of the conditions.",
                )
            order += ready
            left = [name for name in left if name not in ready]
        return order

    def _ancestors(self, names: Collection[str]) -> list[str]:
        found = set(names)
        for name in reversed(self._order):
            if name in found:
                found.update(self._parents[name])
        return [name for name in self._order if name in found]

    def _check_acts(self, name: str) -> None:
        """Refuse a knob that acts in no setting of the space."""
        ancestors = self._ancestors(self._parents[name])
        if self._size(ancestors, default=MAX_ENUMERATED + 1) > MAX_ENUMERATED:
            return
        if any(name in point.active for point in self._enumerate(ancestors)):
            return
        domain = self._domains[name]
        texts = [requirement.text for requirement in domain.knob.requires]
        failing = [
            requirement.text
            for requirement in domain.knob.requires
            if not requirement.holds(self._base_leaves)
        ]
        conditions = [f"{other} is {value}" for other, value in domain.when.items()]
        raise BadInputError(
            f"knobs.{name}: this job ignores it: it acts only where "
            f"{' and '.join(failing or texts)}"
            f"{'; its own condition: ' + ' and '.join(conditions) if conditions else ''}.",
            "Remove the knob, or change the base job or the other knobs.",
        )

    # Settings: canonical form, configuration, enumeration.

    def _find_neutral(self) -> Setting:
        """Return the base job's values; for one that it lacks, a value of the domain stands in."""
        setting: Setting = {}
        for name, domain in self._domains.items():
            value = self._base[name]
            if value is None:
                value = domain.at(0) if domain.size is not None else domain.low
            setting[name] = value
        return setting

    def _resolve(self, raw: Mapping[str, KnobValue]) -> _Point:
        """Return the canonical point of ``raw``; missing knobs take the base job's value."""
        setting: Setting = {}
        active: set[str] = set()
        for name in self._order:
            if self._acts(name, setting, active):
                active.add(name)
                setting[name] = raw.get(name, self._neutral[name])
            else:
                setting[name] = self._neutral[name]
        ordered = {name: setting[name] for name in self._domains}
        return _Point(ordered, frozenset(active), self._leaves(ordered, active))

    def _acts(self, name: str, setting: Setting, active: set[str]) -> bool:
        domain = self._domains[name]
        if not all(
            other in active and setting[other] == value for other, value in domain.when.items()
        ):
            return False
        if not domain.knob.requires:
            return True
        leaves = self._leaves(setting, active) if self._parents[name] else self._base_leaves
        return all(requirement.holds(leaves) for requirement in domain.knob.requires)

    def _wanted(self, setting: Setting, active: Collection[str]) -> dict[str, object]:
        """Return key -> value that a (partial) setting gives to the keys of its knobs."""
        wanted: dict[str, object] = {}
        for name, value in setting.items():
            changes = name in active and value != self._base[name]
            for key in self._keys[name]:
                if changes:
                    wanted[key] = value
                elif key in self._base_leaves:
                    wanted[key] = self._base_leaves[key]
        return wanted

    def _leaves(self, setting: Setting, active: Collection[str]) -> Leaves:
        wanted = self._wanted(setting, active)
        moved: dict[str, object] = {}
        for leaf, chain in self._chains.items():
            source = next((key for key in chain if key in wanted), None)
            if source is not None and (
                leaf == source or wanted[source] != self._base_leaves.get(source)
            ):
                moved[leaf] = wanted[source]
        if not moved:
            return self._base_leaves
        # A ChainMap writes into its first mapping only.
        return ChainMap(moved, self._base_leaves)  # type: ignore[arg-type]

    def _effective(self, key: str, written: Mapping[str, object]) -> object:
        """Return what verl sees at ``key`` when only ``written`` is overridden."""
        source = next((link for link in self._chains[key] if link in written), None)
        return self._base_leaves.get(key) if source is None else written[source]

    def _by_depth(self, keys: Collection[str]) -> list[str]:
        """Sort keys so that the ones that others follow come first."""
        return sorted(keys, key=lambda key: len(self._chains[key]))

    def _broken(self, point: _Point) -> dict[str, str]:
        messages = {rule.name: rule.check(point.leaves) for rule in self._rules}
        return {name: message for name, message in messages.items() if message is not None}

    def _key(self, point: _Point) -> Hashable:
        return tuple(sorted((name, point.setting[name]) for name in point.active))

    def _size(self, names: Collection[str], default: int) -> int:
        """Return the product of the domains' sizes; a continuous one counts ``default``."""
        sizes = [self._domains[name].size for name in names]
        return math.prod(default if size is None else size for size in sizes)

    def _enumerate(self, names: Sequence[str]) -> Iterator[_Point]:
        """Iterate over the distinct settings of some knobs, closed under parents."""
        chosen = set(names)
        return self._extend([name for name in self._order if name in chosen], {}, set())

    def _extend(self, left: list[str], setting: Setting, active: set[str]) -> Iterator[_Point]:
        if not left:
            yield self._resolve(setting)
            return
        name, rest = left[0], left[1:]
        if not self._acts(name, setting, active):
            yield from self._extend(rest, {**setting, name: self._neutral[name]}, active)
            return
        for value in self._domains[name].values():
            yield from self._extend(rest, {**setting, name: value}, {*active, name})

    def _draw(self, rng: np.random.Generator) -> _Point:
        return self._resolve({name: domain.draw(rng) for name, domain in self._domains.items()})

    def _deciding(self) -> list[str]:
        """Return the knobs that a rule reads or on which others depend, and their ancestors."""
        reads = {key for rule in self._rules for key in rule.reads}
        read = [name for name in self._order if self._moves(name) & reads]
        parents = itertools.chain.from_iterable(self._parents.values())
        return self._ancestors([*read, *parents])

    def _sampled_summary(self, is_continuous: bool) -> SpaceSummary:
        rng = np.random.default_rng(0)
        tally = _Tally()
        for _ in range(NUM_SAMPLED):
            tally.add(self._broken(self._draw(rng)), 1)
        num_points = None if is_continuous else self._size(self._order, default=1)
        return tally.summary(num_points, f"a random sample of {NUM_SAMPLED} settings counted")

    def _distribution(self, name: str) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        domain, base = self._domains[name], self._baseline[name]
        if not domain.is_numeric:
            values = domain.choices or ()
            return CategoricalDistribution([*values, *([base] if base not in values else [])])
        low, high = domain.bounds()
        low, high = min(low, float(base)), max(high, float(base))
        log = domain.log and low > 0
        if domain.knob.kind is int and high - low <= MAX_INTEGER_RANGE:
            return IntDistribution(round(low), round(high), log=log)
        return FloatDistribution(low, high, log=log)


class _Tally:
    """Running counts of a summary."""

    def __init__(self) -> None:
        self.num_checked = 0
        self._num_valid = 0
        self._excluded: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, broken: Mapping[str, str], count: int) -> None:
        self.num_checked += count
        self._num_valid += 0 if broken else count
        for name, message in broken.items():
            self._excluded[name] = self._excluded.get(name, 0) + count
            self._examples.setdefault(name, message)

    def summary(self, num_points: int | None, method: str) -> SpaceSummary:
        return SpaceSummary(
            num_points=num_points,
            num_checked=self.num_checked,
            num_valid=self._num_valid,
            excluded=self._excluded,
            examples=self._examples,
            method=method,
        )

"""Whether a canary is as good as the stable revision. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kfp_pytorch.launcher.kserve.canary.check_inputs import CheckInputs
from kfp_pytorch.launcher.kserve.canary.inputs import PROMOTE, ROLLBACK
from kfp_pytorch.launcher.kserve.canary.measuring import CANARY, STABLE, Try
from kfp_pytorch.launcher.kserve.predict.comparing import agrees
from kfp_pytorch.launcher.kserve.predict.latency import summary


@dataclass(frozen=True)
class Figures:
    """What was measured of one side.

    Attributes:
        errors: How often each error came.
        latencies: The seconds of each answer.
        accuracy: The share of right answers of those that are known; None where none is known.
    """

    requests: int
    errors: Counter[str]
    latencies: Sequence[float]
    accuracy: float | None

    @property
    def error_rate(self) -> float:
        """The share of requests that got no answer."""
        return self.errors.total() / self.requests if self.requests else 0.0

    @property
    def percentiles(self) -> dict[str, float]:
        """p50, p90, p95, p99 and max of the latencies, in seconds; nothing without an answer."""
        return summary(self.latencies)


@dataclass(frozen=True)
class Comparison:
    """Both sides, and what follows.

    Attributes:
        agreement: The share of cases that both answered, and answered alike; None without one.
        why_not: Why the canary is not promoted, one reason each; none where it is.
    """

    canary: Figures
    stable: Figures
    agreement: float | None
    why_not: Sequence[str]

    @property
    def decision(self) -> str:
        """`promote` or `rollback`."""
        return ROLLBACK if self.why_not else PROMOTE

    @property
    def reason(self) -> str:
        """The decision's reason, as a sentence."""
        if self.why_not:
            return "; ".join(self.why_not)
        return f"the canary is as good as the stable revision: {_summary(self.canary)}"


def compare(tries: Sequence[Try], given: CheckInputs) -> Comparison:
    """Compare what was measured, by the thresholds of the inputs."""
    canary, stable = (_figures([t for t in tries if t.side == s]) for s in (CANARY, STABLE))
    agreement = _agreement(tries)
    why_not = (
        *_errors(canary, given),
        *_latency(canary, stable, given),
        *_accuracy(canary, stable, given),
        *_difference(agreement, given),
    )
    return Comparison(canary, stable, agreement, why_not)


def _figures(tries: Sequence[Try]) -> Figures:
    known = [right for each in tries for right in each.right if right is not None]
    return Figures(
        requests=len(tries),
        errors=Counter(each.error for each in tries if each.error),
        latencies=[each.seconds for each in tries if not each.error],
        accuracy=sum(known) / len(known) if known else None,
    )


def _agreement(tries: Sequence[Try]) -> float | None:
    first = {(t.side, t.number): t.items for t in reversed(tries) if not t.error}
    numbers = {number for _, number in first}
    both = [n for n in numbers if (CANARY, n) in first and (STABLE, n) in first]
    if not both:
        return None
    alike = sum(_alike(first[CANARY, n], first[STABLE, n]) for n in both)
    return alike / len(both)


def _alike(canary: Sequence[object], stable: Sequence[object]) -> bool:
    """Whether two answers say the same: of classifications the class counts, not the score."""
    if len(canary) != len(stable):
        return False
    return all(
        agrees(one["class"] if isinstance(one, dict) and "class" in one else one, other)
        for one, other in zip(canary, stable, strict=True)
    )


def _errors(canary: Figures, given: CheckInputs) -> Iterator[str]:
    if canary.error_rate > given.max_error_rate:
        (said, _), *_ = canary.errors.most_common(1)
        yield (
            f"{canary.error_rate:.1%} of the canary's requests failed, max_error_rate is "
            f"{given.max_error_rate:.1%}; most often: {said}"
        )


def _latency(canary: Figures, stable: Figures, given: CheckInputs) -> Iterator[str]:
    ours, theirs = canary.percentiles, stable.percentiles
    for name, ratio in given.max_latency_ratio.items():
        if name not in ours or name not in theirs:
            continue
        slower = ours[name] - theirs[name] > given.latency_tolerance
        if slower and ours[name] > ratio * theirs[name]:
            yield (
                f"{name} of the canary's latency is {1000 * ours[name]:.1f} ms, "
                f"{ours[name] / theirs[name]:.1f} times that of the stable revision "
                f"({1000 * theirs[name]:.1f} ms); max_latency_ratio is {ratio:g}"
            )


def _accuracy(canary: Figures, stable: Figures, given: CheckInputs) -> Iterator[str]:
    if canary.accuracy is None:
        return
    if canary.accuracy < given.min_accuracy:
        yield (
            f"{canary.accuracy:.1%} of the canary's answers are right, min_accuracy is "
            f"{given.min_accuracy:.1%}"
        )
    drop = (stable.accuracy or 0.0) - canary.accuracy
    # As long as no float's last digit decides.
    if drop > given.max_accuracy_drop + 1e-9:
        yield (
            f"{canary.accuracy:.1%} of the canary's answers are right, and {stable.accuracy:.1%} "
            f"of the stable revision's; max_accuracy_drop is {given.max_accuracy_drop:.1%}"
        )


def _difference(agreement: float | None, given: CheckInputs) -> Iterator[str]:
    if agreement is not None and agreement < given.min_agreement:
        yield (
            f"canary and stable revision answer alike in {agreement:.1%} of the cases, "
            f"min_agreement is {given.min_agreement:.1%}"
        )


def _summary(canary: Figures) -> str:
    parts = [f"{canary.error_rate:.1%} errors"]
    if canary.accuracy is not None:
        parts.append(f"{canary.accuracy:.1%} of the answers right")
    if "p95" in canary.percentiles:
        parts.append(f"p95 {1000 * canary.percentiles['p95']:.1f} ms")
    return ", ".join(parts)

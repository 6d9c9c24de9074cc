"""Whether the answers and their latencies are good enough."""

from __future__ import annotations

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kserve.predict.asking import Asked, items
from kfp_pytorch.launcher.kserve.predict.exchange import WrongAnswers, shown
from kfp_pytorch.launcher.kserve.predict.inputs import PredictInputs
from kfp_pytorch.launcher.kserve.predict.latency import OF_FIRST, summary
from kfp_pytorch.launcher.text import counted

_SHOWN_WRONG = 5
_ADVICE = (
    "The service runs another model than the one that gave the known answers, or its input is "
    "prepared in another way."
)


class TooSlow(StepError):
    """A latency is over its limit."""


def check(asked: Asked, given: PredictInputs) -> float:
    """Return the share of right answers.

    Raises WrongAnswers: it is under `min_correct`; the message says which are wrong. Raises
    TooSlow: a latency is over its `max_latency`.
    """
    compared = [item for item in items(asked) if item.is_right is not None]
    wrong = [item for item in compared if not item.is_right]
    correct = 1 - len(wrong) / len(compared) if compared else 1.0
    if correct < given.min_correct:
        lines = [
            f"Request {item.number}: expected {shown(item.expected)}, got {shown(item.answer)}"
            for item in wrong[:_SHOWN_WRONG]
        ]
        if len(wrong) > _SHOWN_WRONG:
            lines.append(f"and {len(wrong) - _SHOWN_WRONG} more")
        limit = "" if given.min_correct == 1 else f" min_correct is {given.min_correct:g}."
        head = f"{len(wrong)} of {len(compared)} answers are wrong.{limit}"
        raise WrongAnswers("\n".join([head, *lines, _ADVICE]))
    _check_latency(asked, given)
    return correct


def _check_latency(asked: Asked, given: PredictInputs) -> None:
    found = summary(asked.latencies)
    found |= {f"{OF_FIRST}{name}": s for name, s in summary(asked.first_tokens).items()}
    lines = [
        f"{name} is {found[name]:.3g} s, over its limit of {limit:g} s"
        if name in found
        else f"{name} was not measured: no answer came as a stream"
        for name, limit in given.max_latency.items()
        if found.get(name, limit + 1) > limit
    ]
    if lines:
        sent = counted(len(asked.measured), "request")
        raise TooSlow(
            f"The server is too slow, by {sent}, {given.concurrency} at once: {lines[0]}.\n"
            + "\n".join(
                [
                    *(f"{line}." for line in lines[1:]),
                    "Raise max_latency or the "
                    "predictor's resources, or send fewer requests at once.",
                ]
            )
        )

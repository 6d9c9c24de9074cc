"""InferenceServices here and on a real KServe 0.19: the same cause has the same conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.objects import records
from harness.objects.inference import NAMESPACE, create, put_model, until_ready

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE

pytestmark = pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")

Object = dict[str, Any]
Story = Callable[[Any], Awaitable[None]]
LIMIT_S = 60
# Of an update during an update the real one was too slow to report the beginning.
MOST = 6
# A scheme that the initializer does not know: its download fails at once.
NOT_THERE = "ftp://models/nothing"


async def update(cluster: Any, uri: str) -> None:
    cluster.api.mutate(
        INFERENCE_SERVICE,
        NAMESPACE,
        "digits",
        lambda obj: obj["spec"]["predictor"]["model"].update(storageUri=uri),
    )


async def created(cluster: Any) -> None:
    create(cluster, put_model(cluster, "one", "first"))
    await until_ready(cluster)


async def crash_looped_and_mended(cluster: Any) -> None:
    await created(cluster)
    await update(cluster, "pvc://models/none")

    def replaced(obj: Object) -> bool:
        progressing = next(c for c in obj["status"]["conditions"] if c["type"] == "Progressing")
        return bool(progressing["reason"] == "ReplicaSetUpdated")

    await cluster.until(DEPLOYMENT, "digits-predictor", replaced)
    await until_condition(cluster, "PredictorReady=Unknown(ReplicaSetUpdated)")
    await update(cluster, put_model(cluster, "two", "second"))
    await until_ready(cluster)


async def updated_to_nothing(cluster: Any) -> None:
    await created(cluster)
    await update(cluster, NOT_THERE)
    await blocked(cluster)


async def created_of_nothing(cluster: Any) -> None:
    create(cluster, NOT_THERE)
    await blocked(cluster)


async def without_a_format(cluster: Any) -> None:
    create(cluster, "pvc://models/one", model={"modelFormat": {"name": "nope"}})


async def without_a_runtime(cluster: Any) -> None:
    create(cluster, "pvc://models/one", model={"runtime": "nonsuch"})


async def without_an_account(cluster: Any) -> None:
    create(cluster, "pvc://models/one", serviceAccountName="nonsuch")


async def blocked(cluster: Any) -> None:
    def holds(obj: Object) -> bool:
        model = (obj.get("status") or {}).get("modelStatus") or {}
        return bool(model.get("transitionStatus") == "BlockedByFailedLoad")

    await cluster.until(INFERENCE_SERVICE, "digits", holds)


async def until_condition(cluster: Any, shown: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while shown not in records.conditions(cluster.history(INFERENCE_SERVICE, "digits"))[-1]:
            await asyncio.sleep(0.01)


# For each cause: the record, and the service in it.
CAUSES: dict[str, tuple[Story, str]] = {
    "create image-classifier": (created, "UpToDate"),
    "life sv1": (crash_looped_and_mended, "UpToDate"),
    "s3 s3-classifier": (updated_to_nothing, "BlockedByFailedLoad"),
    "s3bad s3-b": (created_of_nothing, "BlockedByFailedLoad"),
    "s3bad s3-c": (without_a_format, "InvalidSpec"),
    "s3bad s3-d": (without_a_runtime, "InvalidSpec"),
    "s3bad s3-e": (without_an_account, "InProgress"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_conditions_follow_each_other_as_recorded(
    on_kserve: Callable[[Story], None], cause: str
) -> None:
    record, name = cause.split()
    found = records.events(f"inferenceservice/{record}")
    act, transition = CAUSES[cause]

    async def story(cluster: Any) -> None:
        await act(cluster)
        for kind, recorded, local, most in (
            (INFERENCE_SERVICE, name, "digits", MOST),
            (DEPLOYMENT, f"{name}-predictor", "digits-predictor", None),
        ):
            wanted = records.conditions(records.states(found, kind.kind, recorded))[:most]
            if wanted:
                await until_condition_of(cluster, kind, local, wanted)
        last = cluster.api.get(INFERENCE_SERVICE, NAMESPACE, "digits")
        assert last["status"]["modelStatus"]["transitionStatus"] == transition

    on_kserve(story)


async def until_condition_of(cluster: Any, kind: Any, name: str, wanted: list[str]) -> None:
    def seen() -> list[str]:
        return records.conditions(cluster.history(kind, name))[: len(wanted)]

    try:
        async with asyncio.timeout(LIMIT_S):
            while seen() != wanted:
                await asyncio.sleep(0.05)
    except TimeoutError:
        assert seen() == wanted


def test_the_table_names_every_record_of_a_service() -> None:
    listed = {
        path.name.partition(".")[0] for path in (records.FOLDER / "inferenceservice").iterdir()
    }
    assert {cause.split()[0] for cause in CAUSES} == listed

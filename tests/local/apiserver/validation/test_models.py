"""The fields of the native kinds are the official client's."""

from __future__ import annotations

from kubernetes.client import models as official

from kfp_pytorch.local.apiserver.validation import models


def test_the_fields_read_from_the_clients_source_are_those_of_its_classes() -> None:
    for name in ("V1Pod", "V1PodSpec", "V1Container", "CoreV1Event", "V1Service", "V1Volume"):
        found = getattr(official, name)
        expected = {found.attribute_map[a]: kind for a, kind in found.openapi_types.items()}
        assert expected.items() <= models.fields(name).items()

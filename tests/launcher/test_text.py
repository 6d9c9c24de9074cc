"""Lists and lines of messages."""

from __future__ import annotations

from kfp_pytorch.launcher.text import counted, some, wrapped

FIRST = "j-worker-0 ended with exit code 1, after 3 restarts over all pods; 2 more pods failed too."


def test_a_list_of_names_is_short() -> None:
    assert some(["a"]) == "a"
    assert some(["a", "b"]) == "a and b"
    assert some("abcd") == "a, b, c and d"
    assert some("abcde") == "a, b, c and 2 more"


def test_a_count_has_its_plural() -> None:
    assert counted(1, "pod") == "1 pod"
    assert counted(0, "pod") == "0 pods"


def test_a_message_fits_a_viewer_that_cuts_lines_and_its_first_line_stays_whole() -> None:
    advice = "What to do: " + "look at the pods and their logs, " * 6
    lines = wrapped(f"{FIRST}\n{advice}\n\n- {'a pod waits ' * 12}\n  {'log words ' * 12}").split(
        "\n"
    )
    assert lines[0] == FIRST
    assert all(len(line) <= 70 for line in lines[1:])
    assert " ".join(lines[1 : lines.index("")]) == advice.strip()
    items = [line for line in lines if line.startswith(("- ", "  "))]
    assert [line.startswith("- ") for line in items[:2]] == [True, False]
    assert items[-1].startswith("    ")


def test_commands_and_addresses_are_not_broken_apart() -> None:
    command = "`kubectl get pods -A -l app.kubernetes.io/name=training-operator -o wide --watch`"
    listing = "(kubectl get servingruntimes,clusterservingruntimes --all-namespaces --output name)"
    uri = "s3://" + "a-bucket-and-a-folder/" * 6
    text = wrapped(f"First\nCheck that the operator runs with {command}, then {listing} and {uri}.")
    assert command in text
    assert listing in text
    assert uri in text
    assert len(text.splitlines()) >= 4

"""Renders the manifests of examples/kubernetes as `kubectl kustomize` does (resources and JSON patches)."""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"
FOLDERS = ["base", "overlays/sentinel", "overlays/cluster", "overlays/long-tasks"]


def render(folder: str) -> list[dict]:
    """Every document of a folder, with its patches applied."""
    return _render(ROOT / folder)


def _render(folder: Path) -> list[dict]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - {"apiVersion", "kind", "resources", "patches"}
    assert not unknown, f"this renderer does not support {unknown}"
    documents = [document for resource in kustomization["resources"] for document in _load(folder / resource)]
    for patch in kustomization.get("patches", []):
        targets = [document for document in documents if _matches(document, patch["target"])]
        assert targets, f"{patch['path']} patches nothing"
        for target in targets:
            _apply(yaml.safe_load((folder / patch["path"]).read_text()), target)
    return documents


def _load(path: Path) -> list[dict]:
    return _render(path.resolve()) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _matches(document: dict, target: dict) -> bool:
    return (document["kind"], document["metadata"]["name"]) == (target["kind"], target["name"])


def _apply(operations: list[dict], document: dict) -> None:
    for operation in operations:
        *way, last = operation["path"].strip("/").split("/")
        place = document
        for step in way:
            place = place[int(step) if isinstance(place, list) else step]
        value = copy.deepcopy(operation["value"])
        if operation["op"] == "add" and last == "-":
            place.append(value)
        else:
            assert operation["op"] == "replace", operation["op"]
            assert last in place, operation["path"]
            place[last] = value

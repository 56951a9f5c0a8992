"""The manifests match the schemas of Kubernetes, and the package contains the commands that they run."""

import re
import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from qaic.cli import openqaic

MANIFESTS = sorted((Path(__file__).parents[2] / "examples" / "kubernetes").glob("*.yaml"))
#: Versions of the schemas that the package contains: an old one and the newest.
VERSIONS = ["1.31", kubernetes_validate.latest_version()]


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def containers():
    for path in MANIFESTS:
        for document in documents(path):
            if document["kind"] == "Deployment":
                yield from document["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_fits_its_schema(path, version):
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_does_not():
    document = documents(MANIFESTS[0])[0]
    document["spec"]["replicas"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_commands_are_of_the_package():
    for container in containers():
        line = shlex.join([*container["command"], *container.get("args", ())])
        (command,) = re.findall(r"openqaic ([^)]*)", line)
        words = shlex.split(command)
        # The code is only parsed, not run.
        assert openqaic.parser(frozenset(words[:1])).parse_args(words).command == words[0]


def test_each_container_has_a_card_and_memory_for_claims():
    for container in containers():
        assert container["resources"]["limits"]["qualcomm.com/qaic"] == 1
        assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]

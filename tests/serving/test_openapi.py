"""The HTTP interface of the server matches the OpenAPI description of the protocol."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import openapi_spec_validator
import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import serving_support as support
from qaic.serving.http_app import HttpApp
from qaic.serving.limits import Limits
from qaic.serving.repository import Repository
from qaic.serving.server_state import ServerState

DOCUMENT = yaml.safe_load(
    (Path(__file__).parents[2] / "docs" / "reference" / "open-inference-protocol.yaml").read_text()
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def locked(repository):
    """A server on which no client changes models. A 503 because of models that cannot be loaded is not a
    failure.
    """
    with support.serving(repository) as server:
        yield f"http://127.0.0.1:{server.http_port}"


def test_the_document_is_openapi():
    openapi_spec_validator.validate(DOCUMENT)


def test_every_route_is_described_and_none_besides():
    app = HttpApp(ServerState(Repository(dict, drain_s=0), Limits()))
    routes = {(route.path, method) for route in app.routes for method in route.methods - {"HEAD"}}
    described = {
        (path, method.upper())
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert routes == described


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_any_request_gets_an_answer_of_the_document(case, locked):
    if "model" in (case.path_parameters or {}) and len(case.path_parameters["model"]) % 2:
        case.path_parameters["model"] = "affine"
    if case.path_parameters and re.search(r"[/?#]|^\.*$", "".join(map(str, case.path_parameters.values()))):
        # Another path means another operation, or none.
        return
    checks = CHECKS
    if case.path == "/v2/health/ready":
        checks = [check for check in CHECKS if check is not not_a_server_error]
    case.call_and_validate(base_url=locked, checks=checks)


def infer(x, **parameters):
    data = {"data": x.ravel().tolist()}
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), **data}],
        "id": "7",
        **parameters,
    }


def answered(path, method, response):
    schema[path][method].validate_response(schemathesis.Response.from_requests(response, verify=True))
    return response


def test_answers_to_right_requests_fit_the_document(locked):
    x = np.random.default_rng(0).normal(size=(3, support.WIDTH)).astype(np.float32)
    for version in ("", "/versions/1"):
        path = f"/v2/models/{{model}}{'/versions/{version}' if version else ''}"
        url = f"{locked}/v2/models/affine{version}"
        for more in ("", "/ready", "/config", "/stats"):
            assert answered(path + more, "GET", requests.get(url + more, timeout=60)).status_code == 200
        response = answered(f"{path}/infer", "POST", requests.post(f"{url}/infer", json=infer(x), timeout=60))
        (y,) = response.json()["outputs"]
        found = np.array(y["data"], np.float32).reshape(y["shape"])
        assert found.tobytes() == support.expected(x).tobytes()
    wanted = infer(x, parameters={"binary_data_output": True})
    response = requests.post(f"{locked}/v2/models/affine/infer", json=wanted, timeout=60)
    length = int(response.headers["inference-header-content-length"])
    head = json.loads(response.content[:length])
    jsonschema.validate(
        head, {"$ref": "#/components/schemas/InferResponse", "components": DOCUMENT["components"]}
    )
    assert response.content[length:] == support.expected(x).tobytes()

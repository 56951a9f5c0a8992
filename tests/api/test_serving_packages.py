"""Only the server needs the packages of the extra `serve`."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["uvicorn"] = None
import qaic.serving
try:
    qaic.serving.serve("model.onnx")
except qaic.errors.StateError as error:
    print(error.code, error.hints[0])
"""


def test_missing_packages_are_named():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "serving.packages pip install 'openqaic[serve]'"


def test_the_batcher_needs_none_of_them():
    program = "import sys, qaic.serving.batcher, qaic.serving.batch_shapes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"starlette", "uvicorn", "grpc", "tritonclient", "prometheus_client", "orjson"}

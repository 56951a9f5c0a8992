"""Send one request to a server over HTTP and over gRPC.

pip install 'tritonclient[http,grpc]'
python examples/serving/client.py [HTTP_PORT GRPC_PORT]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import tritonclient.grpc
import tritonclient.http

if TYPE_CHECKING:
    from types import ModuleType


def ask(protocol: ModuleType, address: str) -> dict[str, np.ndarray]:
    """Send ones to the first model that is ready; return its outputs by name."""
    client = protocol.InferenceServerClient(address)
    options = {"as_json": True} if protocol is tritonclient.grpc else {}
    index = client.get_model_repository_index(**options)
    models = index["models"] if isinstance(index, dict) else index
    name = next(model["name"] for model in models if model["state"] == "READY")
    metadata = client.get_model_metadata(name, **options)
    inputs = []
    for tensor in metadata["inputs"]:
        # -1 means the batch, here one row.
        shape = [max(1, int(size)) for size in tensor["shape"]]
        inputs.append(protocol.InferInput(tensor["name"], shape, tensor["datatype"]))
        inputs[-1].set_data_from_numpy(np.ones(shape, np.float32))
    answer = client.infer(name, inputs)
    return {tensor["name"]: answer.as_numpy(tensor["name"]) for tensor in metadata["outputs"]}


def main(http_port: int | str = 8000, grpc_port: int | str = 8001) -> None:
    """Show that both protocols give the same outputs."""
    by_http = ask(tritonclient.http, f"127.0.0.1:{http_port}")
    by_grpc = ask(tritonclient.grpc, f"127.0.0.1:{grpc_port}")
    for name, array in by_http.items():
        same = "the same" if array.tobytes() == by_grpc[name].tobytes() else "NOT the same"
        print(name, array.shape, array.ravel()[:4], f"{same} by gRPC")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The second reference for serving: MLServer, with its own batches, and a plain onnxruntime model.

``write_settings`` writes the folder for ``mlserver start``; MLServer imports this file for ``Layers``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlserver import MLModel
    from mlserver.types import InferenceRequest, InferenceResponse


def write_settings(folder: Path, model: Path, port: int, batch: int) -> Path:
    """Write the settings of a loopback server without worker processes; return the folder."""
    folder.mkdir()
    server = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": 0,
        "metrics_endpoint": None,
        # With one model, a separate worker adds a hop to each request.
        "parallel_workers": 0,
        "debug": False,
    }
    settings: dict[str, Any] = {
        "name": "layers",
        "implementation": f"{Path(__file__).stem}.Layers",
        "parameters": {"uri": str(model)},
    }
    if batch > 1:
        settings |= {"max_batch_size": batch, "max_batch_time": 0.001}
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(settings))
    return folder


def _layers() -> type[MLModel]:
    import onnxruntime
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec
    from mlserver.types import InferenceResponse

    class Layers(MLModel):
        """The model, in the form of MLServer's guide to custom runtimes."""

        async def load(self) -> bool:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            path = self.settings.parameters.uri
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            return True

        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            (y,) = self.session.run(["y"], {"x": NumpyCodec.decode_input(payload.inputs[0])})
            return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])

    return Layers


def __getattr__(name: str) -> type[MLModel]:
    if name == "Layers":
        return _layers()
    raise AttributeError(name)

"""The yardstick of serving: kserve over a plain onnxruntime model; arguments are its file and a port."""

import sys

path, port = sys.argv[1], int(sys.argv[2])
# kserve reads them when it is imported.
sys.argv = sys.argv[:1]

import kserve.protocol.rest.server as rest  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from kserve import InferOutput, InferResponse, Model, ModelServer  # noqa: E402

config = rest.uvicorn.Config
# It would listen on all addresses.
rest.uvicorn.Config = lambda *arguments, **named: config(*arguments, **{**named, "host": "127.0.0.1"})


class Layers(Model):
    """The model, as kserve's own examples are written."""

    def __init__(self):
        super().__init__("layers")
        options = ort.SessionOptions()
        # Its best setting: with a thread a core it fights with the event loop and the client.
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.ready = True

    def predict(self, payload, *_):
        """Answer one request."""
        (y,) = self.session.run(["y"], {"x": payload.inputs[0].as_numpy()})
        output = InferOutput("y", list(y.shape), "FP32")
        output.set_data_from_numpy(np.asarray(y), binary_data=True)
        return InferResponse(payload.id, "layers", [output])


ModelServer(http_port=port, enable_grpc=False, enable_latency_logging=False).start([Layers()])

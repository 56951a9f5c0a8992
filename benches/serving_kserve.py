"""The reference for serving: kserve with a plain onnxruntime model; arguments are its file and a port."""

import sys

path, port = sys.argv[1], int(sys.argv[2])
# kserve reads these variables when it is imported.
sys.argv = sys.argv[:1]

import kserve.protocol.rest.server as rest  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from kserve import InferOutput, InferResponse, Model, ModelServer  # noqa: E402

config = rest.uvicorn.Config
# By default, it listens on all addresses.
rest.uvicorn.Config = lambda *arguments, **named: config(*arguments, **{**named, "host": "127.0.0.1"})


class Layers(Model):
    """The model, in the form of kserve's own examples."""

    def __init__(self):
        super().__init__("layers")
        options = ort.SessionOptions()
        # Its best setting: with one thread per core, it competes with the event loop and the client.
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

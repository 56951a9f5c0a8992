"""Serve a model with Ray Serve, with a number of replicas that follows the load.

pip install '.[ray]'
RAY_ADDRESS=... serve run examples.ray.serve_model:application model=model.onnx

or, on one machine, until Ctrl-C:

python examples/ray/serve_model.py model.onnx [PORT]

Clients of the Open Inference Protocol send requests to ``http://127.0.0.1:PORT/v2/models/NAME/infer``.
"""

from __future__ import annotations

import signal
import sys

import ray
from ray import serve

import qaic
import qaic.ray


def application(arguments: dict[str, str]) -> serve.Application:
    """Create the application; ``serve run`` passes the arguments."""
    return qaic.ray.deployment(
        arguments["model"],
        autoscaling_config={"min_replicas": 1, "max_replicas": int(arguments.get("replicas", 1))},
        max_queue_delay_s=0.001,
    )


def main(model: str, port: int | str = 8000) -> None:
    """Serve until a signal."""
    ready = [device for device in qaic.devices() if device.is_ready]
    # A loopback address, which no other host reaches.
    ray.init(resources={"QAIC": len(ready)}, include_dashboard=False, _node_ip_address="127.0.0.2")
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(application({"model": model, "replicas": str(len(ready))}))
    print(f"serving on http://127.0.0.1:{port}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main(*sys.argv[1:])

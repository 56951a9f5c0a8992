"""Programs on a Ray cluster: ``pip install 'openqaic[ray]'``.

`map_batches` runs a program over a dataset of Ray Data, and `deployment` serves one with Ray Serve. The guide
is ``docs/scale.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from qaic.errors import StateError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    import onnx
    from ray.data import Dataset
    from ray.serve import Application

    from qaic.qpc import Qpc

__all__ = ["deployment", "map_batches"]


def map_batches(
    dataset: Dataset,
    model: str | os.PathLike[str] | bytes | Qpc | onnx.ModelProto,
    *,
    num_actors: int | tuple[int, int] = 1,
    batch_size: int | None = None,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Iterable[str] | None = None,
    output_format: Literal["numpy", "arrow"] = "numpy",
    preserve_order: bool = False,
    devices_per_actor: float = 1.0,
    options: Mapping[str, Any] | None = None,
    **ray_remote_args: Any,
) -> Dataset:
    """Run a program over the rows of a dataset, and add its outputs as columns.

    Each actor claims devices of its host, loads the program once and keeps it. It combines rows into batches
    of the program, with padding, and runs them with ``Session.map``; the bits of a row's result do not depend
    on its batch. If an actor or its node ends, other actors repeat its unfinished tasks, so every row is in
    the result exactly once. The dataset is evaluated lazily, as in Ray Data; only the model is compiled
    immediately, on this machine.

    Parameters
    ----------
    dataset
        Each row has a value for each input of the program, with the shape of the input without its first
        dimension (the batch), or with the same number of elements. Columns contain tensors of Ray Data, or
        tensors, lists or numbers of Arrow, in the program's type or one that `qaic.Session.run` converts.
    model
        As for `qaic.Session`. An ONNX model is compiled, or found in the cache, once for all actors. Nodes
        get the container from Ray's object store, so no shared disk is needed.
    num_actors
        Number of actors, or the minimum and maximum of a pool that Ray scales.
    batch_size
        Rows per call of an actor. ``None``: as many as keep its devices busy, below 64 MiB of tensors.
    inputs
        Input of the program -> column, if the names differ.
    outputs
        Output of the program -> column to write; only these are written. ``None``: all, by their names.
    keep
        Columns of the dataset that stay next to the outputs. ``None``: all.
    output_format
        ``"numpy"``: tensor columns, which come out of Ray Data as numpy arrays; ``"arrow"``: lists of fixed
        size, which other readers of Arrow and Parquet understand.
    preserve_order
        True to keep the order of the rows in ``dataset``, which may be slower. The setting applies to all
        datasets from the same source.
    devices_per_actor
        Units of the resource ``QAIC`` (cards) per actor, or a share of one card between 0 and 1. With 0,
        actors claim no card and use all devices that the process can use.
    options
        Options of `qaic.Session`, such as ``num_activations`` and ``set_size``, or of the compiler.
    **ray_remote_args
        Options of Ray's actors, such as ``num_cpus``, ``runtime_env`` or ``max_restarts``.

    Returns
    -------
    ray.data.Dataset
        The rows with the kept columns and the outputs.

    Raises
    ------
    qaic.errors.QaicError
        Immediately: the model cannot be compiled or opened, has state on the device, or an argument is wrong.
        While the dataset runs, as the cause of Ray's exception: a row cannot be used, or the program failed
        on it; the message identifies the row.
    qaic.errors.StateError
        Immediately: Ray is missing.

    Examples
    --------
    >>> import qaic.ray, ray
    >>> rows = ray.data.read_parquet("rows")  # doctest: +SKIP
    >>> results = qaic.ray.map_batches(rows, "model.onnx", num_actors=(1, 4))  # doctest: +SKIP
    >>> results.write_parquet("results")  # doctest: +SKIP
    """
    _require("ray.data")
    from qaic.ray.batch_inference import Columns, add_inference

    return add_inference(
        dataset,
        model,
        Columns(
            inputs=dict(inputs or {}),
            outputs=None if outputs is None else dict(outputs),
            keep=None if keep is None else tuple(keep),
            output_format=output_format,
        ),
        num_actors=num_actors,
        batch_size=batch_size,
        preserve_order=preserve_order,
        devices=devices_per_actor,
        options=dict(options or {}),
        ray_remote_args=ray_remote_args,
    )


def deployment(
    model: str | os.PathLike[str] | bytes | Qpc | onnx.ModelProto,
    *,
    name: str | None = None,
    devices_per_replica: float = 1.0,
    max_queue_delay_s: float = 0.0,
    max_queue_size: int | None = None,
    default_timeout_s: float | None = None,
    options: Mapping[str, Any] | None = None,
    **deployment_options: Any,
) -> Application:
    """Return an application of Ray Serve that serves one model.

    Its routes are those of `openqaic serve` over HTTP, the Open Inference Protocol, and requests share
    inferences in the same way (``docs/guide/serving.md``). Other deployments call ``infer`` of its handle:
    ``await handle.infer.remote({"x": array})`` gives the outputs by name.

    Parameters
    ----------
    model, options
        As for `map_batches`.
    name
        Name of the model in the routes, and of the deployment. ``None``: the name of the file, or of the
        folder of ``programqpc.bin``; otherwise ``"model"``.
    devices_per_replica
        As ``devices_per_actor`` of `map_batches`.
    max_queue_delay_s
        Seconds that a request waits for others to share its batch; 0: only requests that already wait.
    max_queue_size
        Largest number of requests that wait in a replica; ``None``: 1,024.
    default_timeout_s
        Seconds that a request may take if it sets no limit; ``None``: no limit.
    **deployment_options
        Options of ``ray.serve.deployment``, such as ``num_replicas`` and ``autoscaling_config``. The default
        of ``max_ongoing_requests`` is 256, because requests that Serve holds back cannot share a batch.

    Returns
    -------
    ray.serve.Application
        The application, for ``ray.serve.run``, ``serve run``, or as an argument of another deployment.

    Raises
    ------
    qaic.errors.QaicError
        The model cannot be compiled or opened, or keeps state on the device.
    qaic.errors.StateError
        Ray, or a package of serving, is missing.

    Examples
    --------
    >>> import qaic.ray, ray.serve
    >>> app = qaic.ray.deployment("model.onnx", num_replicas=2)  # doctest: +SKIP
    >>> ray.serve.run(app)  # doctest: +SKIP
    """
    _require("ray.serve", "starlette", "tritonclient")
    from qaic.ray.serve_replica import bind_application

    return bind_application(
        model,
        name,
        devices=devices_per_replica,
        max_queue_delay_s=max_queue_delay_s,
        max_queue_size=max_queue_size,
        default_timeout_s=default_timeout_s,
        options=dict(options or {}),
        deployment_options=deployment_options,
    )


def _require(*names: str) -> None:
    from importlib import import_module

    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise StateError(
                f"{name} cannot be imported, which qaic.ray needs: {error}",
                code="ray.packages",
                hints=("pip install 'openqaic[ray]'",),
            ) from error

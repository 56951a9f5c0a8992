"""Running programs on a Ray cluster: ``pip install 'openqaic[ray]'``.

`map_batches` runs a program over a dataset of Ray Data, `deployment` serves one by Ray Serve. The guide is
``docs/scale.md``.
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

    Each actor claims devices of its host, loads the program once and keeps it. Rows are put together into the
    program's batch, filled up and taken apart again, with ``Session.map`` between; a row's result has the
    same bits whichever rows are next to it. What an actor had not finished when it, or its node, died is done
    by another: every row comes out exactly once. Lazy, as all of Ray Data; only the container is made at
    once, on this machine.

    Parameters
    ----------
    dataset
        A row has a value for each input of the program: its shape is the input's without the batch, the first
        dimension, or has as many elements. Columns hold tensors of Ray Data, tensors, lists or numbers of
        Arrow, with the program's type or one that `qaic.Session.run` converts.
    model
        As for `qaic.Session`. An ONNX model is compiled, or found in the cache, once for all actors. The
        container goes to the nodes through Ray's object store, so it need not be on a shared disk.
    num_actors
        Actors, or the fewest and the most of a pool that Ray scales.
    batch_size
        Rows that an actor takes at a time. ``None``: what keeps its devices busy, below 64 MiB of tensors.
    inputs
        Input of the program -> column, where the names differ.
    outputs
        Output of the program -> column to write; only these are written. ``None``: all, by their names.
    keep
        Columns of the dataset that stay next to the outputs. ``None``: all.
    output_format
        ``"numpy"``: tensor columns, which come out of Ray Data as numpy arrays; ``"arrow"``: lists of fixed
        size, which other readers of Arrow and Parquet understand.
    preserve_order
        Whether rows come out in the order of ``dataset``; Ray may give less speed for it. The setting is one
        of all datasets that were made from the same source.
    devices_per_actor
        Units of the resource ``QAIC`` that an actor takes, one a card; a share of one between 0 and 1; or 0:
        no resource and no claim, all devices that a process sees.
    options
        Options of `qaic.Session`, such as ``num_activations`` and ``set_size``, or of the compiler.
    **ray_remote_args
        Of Ray's actors, as ``num_cpus``, ``runtime_env`` or ``max_restarts``.

    Returns
    -------
    ray.data.Dataset
        The rows with the kept columns and the outputs.

    Raises
    ------
    qaic.errors.QaicError
        At once: the model cannot be compiled or opened, keeps state on the device, or an argument is wrong.
        While the dataset runs, as the cause of Ray's exception: a row cannot be used, or the program failed
        on it; the message shows the row.
    qaic.errors.StateError
        At once: Ray is missing.

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
    """Make an application of Ray Serve that answers for one model.

    Its routes are those of `openqaic serve` over HTTP, the Open Inference Protocol, and requests share
    inferences in the same way (``docs/guide/serving.md``). Other deployments call ``infer`` of its handle:
    ``await handle.infer.remote({"x": array})`` gives the outputs by name.

    Parameters
    ----------
    model, options
        As for `map_batches`.
    name
        Of the model in the routes, and of the deployment. ``None``: that of the file, or of the folder of
        ``programqpc.bin``; else ``"model"``.
    devices_per_replica
        As ``devices_per_actor`` of `map_batches`.
    max_queue_delay_s
        Seconds that a request waits for others to share its batch; 0: those that are there count.
    max_queue_size
        Requests that wait in a replica at most; ``None``: 1,024.
    default_timeout_s
        Seconds that a request may take if it sets no limit; ``None``: no limit.
    **deployment_options
        Of ``ray.serve.deployment``, as ``num_replicas``, ``autoscaling_config`` and ``ray_actor_options``.
        ``max_ongoing_requests`` is 256 unless given, for requests that Serve holds back cannot share a batch.

    Returns
    -------
    ray.serve.Application
        For ``ray.serve.run`` and ``serve run``, or to be bound into another deployment.

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

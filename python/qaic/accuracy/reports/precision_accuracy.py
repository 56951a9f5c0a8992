"""Results for one precision: verdict, first offender and remedy, errors of outputs and of every node."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.capture import Capture
from qaic.accuracy.card_outputs import CardOutputs
from qaic.accuracy.decoding import DecodingAccuracy
from qaic.accuracy.instrument import FIELDS
from qaic.accuracy.metrics import OutputAccuracy, decibel_text
from qaic.accuracy.observed import ObservedNode
from qaic.accuracy.propagation import noise, parts_at_outputs
from qaic.accuracy.reasons import LOW_SQNR_DB, Measured, Reason, masked_values, measured, reason_of
from qaic.accuracy.remedies import names_to_keep, remedy
from qaic.report import Prose
from qaic.support.text import counted, percentage, three_digits

#: a node, its measurements and its reason
_Pair: TypeAlias = tuple[ObservedNode, tuple[Measured, Reason]]
#: columns of `AccuracyReport.nodes`
NODE_DTYPE: Final = np.dtype(
    [
        ("to", "U16"),
        ("name", "O"),
        ("op_type", "O"),
        ("precision", "U5"),
        ("inherited_sqnr_db", "f8"),
        ("own_sqnr_db", "f8"),
        ("weights_share", "f8"),
        ("overflow", "f8"),
        ("underflow", "f8"),
        ("saturation", "f8"),
        ("minimum", "f8"),
        ("maximum", "f8"),
        ("quantile_999", "f8"),
        ("outlier_ratio", "f8"),
        ("channel_ratio", "f8"),
        ("reason", "U16"),
        ("fused", "O"),
    ]
)

#: SQNR of outputs in dB: smallest values for the verdicts better than fair, and better than wrong
GOOD_DB: Final = 40.0
WRONG_DB: Final = 20.0
#: shares of equal decisions for the same verdicts
GOOD_SAME: Final = 0.99
_WRONG_SAME: Final = 0.9


@dataclass(frozen=True, slots=True)
class Offender:
    """The node to examine first.

    Parameters
    ----------
    name
        First output of the node in the user's model.
    op_type
        Operator.
    reason
        Cause of the loss.
    own_sqnr_db, inherited_sqnr_db
        Errors in dB, as in `AccuracyReport.nodes`.
    keep
        Names for a node precision file that reduces the error: all nodes of the fused operation, and
        the nodes next to it that would round the same values.
    remedy
        Fix, as a text.
    """

    name: str
    op_type: str
    reason: str
    own_sqnr_db: float
    inherited_sqnr_db: float
    keep: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        """Return the finding in one sentence."""
        why = "adds more error than other nodes" if self.reason == Reason.NONE else self.reason
        return f"{self.op_type} {self.name}: {why}; {self.remedy}."


class PrecisionAccuracy:
    """Results of one precision.

    Parameters
    ----------
    to : str
        Name of the precision.
    capture : Capture
        Measurements of the comparison.
    seconds : float
        Duration of the comparison.
    warnings : sequence of str
        Messages of the compiler.
    card : CardOutputs or None
        Compared outputs of a real card, if they were given.
    is_random : bool
        True if the inputs were random numbers.
    """

    def __init__(
        self,
        to: str,
        capture: Capture,
        seconds: float,
        warnings: Sequence[str] = (),
        card: CardOutputs | None = None,
        *,
        is_random: bool = False,
    ) -> None:
        self.to = to
        self.seconds = seconds
        self.samples = capture.samples
        self.is_random = is_random
        #: comparison of the three computations of each output, if outputs of a card were given
        self.card = () if card is None else card.result()
        self._unpaired = () if card is None else card.difference_in_number()
        #: differences of the tokens of a decoder; None if none were made
        self.decoding: DecodingAccuracy | None = capture.decoding
        self.warnings = tuple(warnings)
        #: errors of the outputs, in their order
        self.outputs: tuple[OutputAccuracy, ...] = capture.outputs
        self._capture = capture

    def __repr__(self) -> str:
        """Return the verdict."""
        return f"<PrecisionAccuracy {self.to}: {self.verdict}>"

    @cached_property
    def _measured(self) -> list[tuple[Measured, Reason]]:
        found: list[tuple[Measured, Reason]] = []
        known: dict[str, Measured] = {}
        minima: dict[str, float] = {}
        nodes = self._capture.nodes
        for node, row in zip(nodes, self._capture.sums, strict=True):
            sums = dict(zip(FIELDS, row.tolist(), strict=True))
            own = measured(sums)
            found.append((own, reason_of(node, own, known)))
            known[node.value] = own
            minima[node.value] = sums["minimum"]
        masked = masked_values(nodes, minima, known, {output.name for output in self.outputs})
        return [
            (own, Reason.MASKED if node.value in masked else reason)
            for node, (own, reason) in zip(nodes, found, strict=True)
        ]

    @cached_property
    def nodes(self) -> NDArray[np.void]:
        """Errors of every node, in topological order; see `AccuracyReport.nodes`."""
        rows = np.zeros(len(self._capture.nodes), NODE_DTYPE)
        for at, (node, sums, (own, reason)) in enumerate(
            zip(self._capture.nodes, self._capture.sums, self._measured, strict=True)
        ):
            named = dict(zip(FIELDS, sums.tolist(), strict=True))
            largest = max(abs(named["minimum"]), abs(named["maximum"]))
            rows[at] = (
                self.to,
                node.name,
                node.op_type,
                node.precision.value,
                own.inherited_sqnr_db,
                own.own_sqnr_db,
                own.weights_share,
                own.overflow,
                own.underflow,
                own.saturation,
                named["minimum"],
                named["maximum"],
                named["quantile"] if named["spaced"] or not named["elements"] else math.nan,
                largest / named["quantile"] if named["quantile"] > 0 else math.nan,
                own.outlier_ratio,
                reason.value,
                node.fused,
            )
        return rows

    @cached_property
    def own_names(self) -> list[str | None]:
        """Name of each node in profiles; None if it is the name in `nodes`."""
        return [None if node.nodes == node.name else node.nodes for node in self._capture.nodes]

    @property
    def verdict(self) -> str:
        """``equal``, ``good``, ``fair`` or ``wrong``: the worst of all outputs."""
        order = ("equal", "good", "fair", "wrong")
        return max((_verdict(output) for output in self.outputs), key=order.index, default="equal")

    @property
    def is_good(self) -> bool:
        """True if the precision can replace float32: all tokens of a decoder, or all outputs, are good."""
        if self.decoding is not None:
            return self.decoding.first_difference is None
        return self.verdict in {"equal", "good"}

    @property
    def missed_target(self) -> str | None:
        """A target of a search that the outputs miss; None if they reach those that apply to them."""
        if self.decoding is not None:
            return None if self.is_good else f"tokens>={self.decoding.tokens}"
        compared = [output for output in self.outputs if output.elements > output.not_finite]
        if any(not output.is_equal and not output.sqnr_db >= GOOD_DB for output in compared):
            return f"sqnr>={GOOD_DB:g}"
        return f"same>={GOOD_SAME:.0%}" if any(output.same < GOOD_SAME for output in compared) else None

    @cached_property
    def first_offender(self) -> Offender | None:
        """The node to examine first, or None.

        This is the first node that overflows. If no node overflows and the verdict is ``fair`` or ``wrong``,
        it is the node with a reason that loses most. If none has a reason, it is the node whose error
        contributes most to the outputs.
        """
        pairs = list(zip(self._capture.nodes, self._measured, strict=True))
        chosen = next((pair for pair in pairs if pair[1][1] is Reason.OVERFLOW), None)
        if chosen is None and self.verdict in {"fair", "wrong"}:
            with_reason = [pair for pair in pairs if pair[1][1] not in {Reason.MASKED, Reason.NONE}]
            chosen = min(with_reason, key=_loss, default=None) or self._largest_contribution(pairs)
        if chosen is None:
            return None
        node, (own, reason) = chosen = self._source(chosen)
        names = names_to_keep(
            self._capture.nodes, [reason for _, reason in self._measured], pairs.index(chosen)
        )
        return Offender(
            node.name,
            node.op_type,
            reason.value,
            own.own_sqnr_db,
            own.inherited_sqnr_db,
            names,
            remedy(reason, node, names, self._capture.calibration),
        )

    def _largest_contribution(self, pairs: Sequence[_Pair]) -> _Pair | None:
        """Return the unmasked node whose own error contributes most to the outputs."""
        own_db = [own.own_sqnr_db for _, (own, _) in pairs]
        parts = parts_at_outputs(
            self._capture.nodes, own_db, [own.inherited_sqnr_db for _, (own, _) in pairs]
        )
        size = [noise(error) * part for error, part in zip(own_db, parts, strict=True)]
        places = [at for at, pair in enumerate(pairs) if pair[1][1] is not Reason.MASKED]
        return pairs[max(places, key=size.__getitem__)] if places else None

    def _source(self, pair: _Pair) -> _Pair:
        """Return the node that computes an outlier channel; later nodes only pass the channel on."""
        found = {
            node.value: (node, own)
            for node, own in zip(self._capture.nodes, self._measured, strict=True)
            if own[1] is Reason.OUTLIER_CHANNEL
        }
        while pair[1][1] is Reason.OUTLIER_CHANNEL:
            before = next((found[name] for name in pair[0].inputs if name in found), None)
            if before is None:
                break
            pair = before
        return pair

    def worst(self, count: int) -> list[int]:
        """Return indices of rows of `nodes`: those that overflow, those with a reason, then by own error."""
        pairs = list(zip(self._capture.nodes, self._measured, strict=True))

        def order(at: int) -> tuple[float, bool, float, int]:
            own, reason = pairs[at][1]
            return -own.overflow, reason is Reason.NONE, _loss(pairs[at]), at

        loses = [
            at
            for at, (_, (own, reason)) in enumerate(pairs)
            if reason is not Reason.MASKED and (own.own_sqnr_db < math.inf or reason is not Reason.NONE)
        ]
        return sorted(loses, key=order)[:count]

    def histogram(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the numbers of values in each octave for a row of `nodes`: in float32, and in the program.

        Both are int64 arrays with the bins of `qaic.accuracy.metrics`, and count evenly spaced elements.
        Returns None if the result is not rounded.
        """
        return self._capture.histograms.of(row)

    def _card_sentences(self) -> Iterator[str]:
        """State whether the card loses more than the precision explains."""
        if not self.card:
            return
        more = [item for item in self.card if item.is_more]
        said = more or self.card
        figures = "; ".join(
            f"output {item.name} of the card has {decibel_text(item.card.sqnr_db)}, and "
            f"{decibel_text(item.rounded.sqnr_db)} with the expected rounding"
            for item in said[:3]
        )
        yield f"The card loses {'' if more else 'no '}more than the precision explains: {figures}."
        if any(item.is_unrelated for item in more):
            yield "They differ like outputs of different samples, so they probably belong to other inputs."
        yield from self._unpaired

    def _decoding_sentences(self) -> Iterator[str]:
        """Return where tokens differ, and which cache is worst."""
        found = self.decoding
        if found is None:
            return
        first = found.first_difference
        same = float(np.mean(found.steps["token"] == found.steps["found"]))
        if first is None:
            prompts = counted(self.samples, "prompt")
            yield f"{self.to}: all {counted(found.tokens, 'token')} of {prompts} equal those of float32."
        else:
            prompt, step = first
            yield (
                f"{self.to}: the first different token is number {step + 1} of prompt {prompt + 1}; "
                f"{percentage(100 * same)} % of the tokens equal those of float32."
            )
        worst = min(found.caches, key=lambda cache: cache.sqnr_db, default=None)
        if worst is not None and worst.sqnr_db == math.inf:
            yield f"{self.to}: all caches equal those of float32."
        elif worst is not None:
            size = decibel_text(worst.sqnr_db)
            yield f"{self.to}: the cache with the largest error is {worst.name}, {size}."

    def sentences(self) -> Iterator[str]:
        """Yield the verdict as sentences: outputs, first offender, counts."""
        yield from self._card_sentences()
        yield from self._decoding_sentences()
        for output in self.outputs:
            figures = ", ".join(_figures(output))
            yield (
                f"{self.to}: output {output.name} is {_VERDICTS[_verdict(output)]}"
                f"{f': {figures}' if figures else ''}."
            )
        if self.is_random:
            text = f"{self.to}: the inputs were random numbers, which do not show accuracy."
            yield Prose(text, options=("samples",))
        offender = self.first_offender
        if offender is not None:
            random = " for random inputs" if self.is_random else ""
            names = (offender.name, offender.op_type, *offender.keep)
            yield Prose(f"{self.to}: first offender{random} is {offender}", names=names)
        counts: dict[str, int] = {}
        for node in self._capture.nodes:
            counts[node.precision.value] = counts.get(node.precision.value, 0) + 1
        computed = ", ".join(
            f"{count:,} in {TYPES.get(name, name)}" for name, count in sorted(counts.items())
        )
        twin, compared = self._capture.twin, len(self._capture.nodes)
        numbers = {"inside fused operations": twin.fused, "constants or results of other types": twin.others}
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in numbers.items() if number)
        yield (
            f"{self.to}: {compared:,} of {counted(compared + twin.fused + twin.others, 'result')} of nodes"
            f" compared ({computed}), {counted(self.samples, 'sample')}, {self.seconds:.1f} s"
            f"{f'; not compared: {reasons}' if reasons else ''}."
        )


#: names of precisions of the command line -> names of types
TYPES: Final = {"fp32": "float32", "fp16": "float16"}

_VERDICTS: Final = {"equal": "equal bit for bit", "good": "good", "fair": "fair", "wrong": "wrong"}


def _verdict(output: OutputAccuracy) -> str:
    if output.is_equal or not output.elements:
        return "equal"
    channel = output.worst_channel
    if output.is_dead or (channel is not None and channel.is_dead):
        return "wrong"
    # Decisions take precedence over SQNR if there are any.
    decides = not math.isnan(output.same)
    is_uneven = channel is not None and channel.sqnr_db < WRONG_DB
    if output.sqnr_db >= GOOD_DB and (not decides or output.same >= GOOD_SAME) and not is_uneven:
        return "good"
    return "wrong" if output.sqnr_db < WRONG_DB and (not decides or output.same < _WRONG_SAME) else "fair"


def _figures(output: OutputAccuracy) -> Iterator[str]:
    """Yield the errors of an output; only remarks if it has none."""
    if not output.is_equal:
        yield f"SQNR {decibel_text(output.sqnr_db)}"
        if not math.isnan(output.cosine):
            yield f"cosine {three_digits(output.cosine)}"
        if not math.isnan(output.same):
            yield f"{percentage(100 * output.same)} % equal decisions"
        yield f"largest error {three_digits(output.largest_error)}"
    channel = output.worst_channel
    if output.is_dead:
        yield "one constant value where float32 varies"
    elif output.constant_channels:
        yield f"{counted(output.constant_channels, 'channel')} constant where float32 varies"
    if channel is not None and not output.is_dead and (channel.is_dead or channel.sqnr_db < WRONG_DB):
        lost = "one constant value" if channel.is_dead else f"SQNR {decibel_text(channel.sqnr_db)}"
        yield f"channel {channel.index} of dimension {channel.axis} has {lost}"
    if output.not_finite:
        yield (
            f"infinite or NaN even in float32, so not compared: {output.not_finite} of "
            f"{counted(output.elements, 'element')}; check the samples"
        )
    if output.first_not_finite is not None:
        sample, element = output.first_not_finite
        yield f"infinite or NaN from element {element} of sample {sample + 1} on"


def _loss(pair: _Pair) -> float:
    """Order nodes by their loss beyond that of their precision."""
    node, (own, reason) = pair
    loss = own.inherited_sqnr_db if reason is Reason.CANCELLATION else own.own_sqnr_db
    if reason is Reason.OUTLIER_CHANNEL:
        # All channels have the same error, so the SQNR of the median channel decides.
        loss -= 20 * math.log10(own.outlier_ratio)
    return (math.inf if math.isnan(loss) else loss) - LOW_SQNR_DB[node.precision]

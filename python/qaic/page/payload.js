// What a page carries: base64 of deflated bytes. Those of a graph are JSON; those of the timeline are a length, JSON of
// that length, and arrays.

const payload = {
  inflated(element) {
    const coded = atob(element.textContent.trim());
    const packed = Uint8Array.from(coded, (letter) => letter.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")));
  },

  json(element) { return payload.inflated(element).json(); },

  async read(element) {
    const bytes = await payload.inflated(element).arrayBuffer();
    const length = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    const arrays = bytes.slice(4 + length);
    for (const track of header.tracks) payload.expand(track, arrays);
    return header;
  },

  numbers(arrays, [code, offset], count) {
    const Type = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array }[code];
    return new Type(arrays, offset, count);
  },

  // Starts are stored as distances from the one before, in the units of the track; here they become nanoseconds.
  expand(track, arrays) {
    const { count, ns_per_unit: scale, origin_ns: origin } = track;
    const steps = payload.numbers(arrays, track.arrays.step, count);
    const durations = payload.numbers(arrays, track.arrays.duration, count);
    track.start = new Float64Array(count);
    track.end = new Float64Array(count);
    let unit = 0;
    for (let i = 0; i < count; i += 1) {
      unit += steps[i];
      track.start[i] = origin + unit * scale;
      track.end[i] = track.start[i] + durations[i] * scale;
    }
    track.label = payload.numbers(arrays, track.arrays.label, count);
    for (const name of ["before", "after", "members", "bytes"]) {
      track[name] = track.arrays[name] ? payload.numbers(arrays, track.arrays[name], count) : null;
    }
  },
};

// Questions about the operations of one row, which are in the order of their starts.

class Track {
  constructor(data, index) {
    Object.assign(this, data);
    this.index = index;
    // Index of the longest of every 64, so that a million are searched by looking at thousands.
    const blocks = Math.ceil(this.count / 64);
    this.longestOf = new Uint32Array(blocks);
    this.busyUntil = new Float64Array(this.count + 1);
    for (let i = 0; i < this.count; i += 1) {
      const block = i >> 6;
      if ((i & 63) === 0 || this.duration(i) > this.duration(this.longestOf[block])) this.longestOf[block] = i;
      this.busyUntil[i + 1] = this.busyUntil[i] + this.duration(i);
    }
    this.found = null;
  }

  duration(i) { return this.end[i] - this.start[i]; }

  // First operation that starts at `time` or later, looked for from `low` on.
  from(time, low = 0) {
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] < time) low = middle + 1; else high = middle;
    }
    return low;
  }

  // The operation at `time`, or -1; `slack` widens each, so that thin ones can be hit.
  at(time, slack) {
    const next = this.from(time);
    let best = -1;
    let distance = slack;
    for (let i = Math.max(0, next - 1); i <= Math.min(next, this.count - 1); i += 1) {
      const away = Math.max(this.start[i] - time, time - this.end[i], 0);
      if (away <= distance) { best = i; distance = away; }
    }
    return best;
  }

  longest(first, last) {
    let best = first;
    for (let i = first; i < last;) {
      if ((i & 63) === 0 && i + 64 <= last) {
        const candidate = this.longestOf[i >> 6];
        if (this.duration(candidate) > this.duration(best)) best = candidate;
        i += 64;
      } else {
        if (this.duration(i) > this.duration(best)) best = i;
        i += 1;
      }
    }
    return best;
  }

  busy(first, last) { return this.busyUntil[last] - this.busyUntil[first]; }

  // Counts what is searched for, so that any range can be asked.
  mark(labels) {
    if (!labels) { this.found = null; return 0; }
    this.found = new Uint32Array(this.count + 1);
    for (let i = 0; i < this.count; i += 1) this.found[i + 1] = this.found[i] + labels[this.label[i]];
    return this.found[this.count];
  }

  marked(first, last) { return this.found === null || this.found[last] > this.found[first]; }

  nextMarked(i, direction) {
    for (let j = i + direction; j >= 0 && j < this.count; j += direction) if (this.marked(j, j + 1)) return j;
    return -1;
  }
}

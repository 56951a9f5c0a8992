// What the timeline shows: rows, names and kinds, and what is being searched for.

class TimelineModel {
  constructor(header) {
    this.header = header;
    this.labels = header.labels;
    this.kinds = header.kinds;
    this.tracks = header.tracks.map((track, index) => new Track(track, index));
    let from = Infinity;
    let to = -Infinity;
    for (const track of this.tracks) {
      if (!track.count) continue;
      from = Math.min(from, track.start[0]);
      for (let i = track.count - 1; i >= Math.max(0, track.count - 64); i -= 1) to = Math.max(to, track.end[i]);
    }
    if (!(to > from)) { from = Number.isFinite(from) ? from : 0; to = from + 1; }
    const margin = (to - from) * 0.01;
    this.extent = { from: from - margin, to: to + margin };
    // Times are told from here: the begin of the inference that is looked at.
    this.zero = header.samples.length ? header.samples[header.shown].start_ns : from;
    this.rankKinds();
  }

  // The rows whose time is counted by kind: those of devices, or of the host where it is alone.
  get working() {
    const found = this.tracks.filter((track) => track.role === "ops");
    return found.length ? found : this.tracks.filter((track) => track.role === "host");
  }

  get operations() { return this.tracks.reduce((sum, track) => sum + track.count, 0); }

  rankKinds() {
    const { samples, shown } = this.header;
    // Shares are those of the tables of the page, which are of one inference.
    const { start_ns: from, end_ns: to } = samples[shown] ?? { start_ns: -Infinity, end_ns: Infinity };
    const time = new Float64Array(this.kinds.length);
    const seen = new Set();
    for (const track of this.working) {
      for (let i = 0; i < track.count; i += 1) {
        const kind = this.labels.kind[track.label[i]];
        seen.add(kind);
        if (track.start[i] >= from && track.start[i] < to) time[kind] += track.duration(i);
      }
    }
    this.kindTime = time;
    this.ranked = [...seen].sort((a, b) => time[b] - time[a]);
    this.kindColor = new Array(this.kinds.length).fill(OTHER);
    // What the host does beside a device is marked, and does not take the devices' colors.
    const host = this.tracks.filter((track) => track.role === "host");
    const others = new Set(host.flatMap((track) => [...new Set(track.label)].map((label) => this.labels.kind[label])));
    const named = [...others].sort((a, b) => (this.kinds[a] < this.kinds[b] ? -1 : 1));
    const palette = this.tracks.some((track) => track.role === "ops") ? HOST_PALETTE : PALETTE;
    named.forEach((kind, place) => { this.kindColor[kind] = palette[place % palette.length]; });
    // Every page gives a kind the same color, whatever else it has.
    for (const kind of this.ranked) {
      const place = this.header.colors[kind];
      if (place >= 0 && !others.has(kind)) this.kindColor[kind] = PALETTE[place];
    }
  }

  color(label) { return this.kindColor[this.labels.kind[label]]; }
  kind(label) { return this.kinds[this.labels.kind[label]]; }
  name(label) { return this.labels.name[label]; }

  // The kind, and with room for it the name; spans that are nothing but a name show it.
  caption(label, roomy) {
    const kind = this.kind(label);
    const name = this.name(label);
    if (!kind) return name;
    if (!roomy || !name || name === kind) return kind;
    return `${kind}  ${name.replace(/\/__\d+$/, "")}`;
  }

  // Marks what has all the words of `text` in its name, kind or nodes and is of one of `kinds`; the number of hits.
  search(text, kinds) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length && !kinds.size) {
      for (const track of this.tracks) track.mark(null);
      return null;
    }
    const hits = new Uint8Array(this.labels.name.length);
    for (let label = 0; label < hits.length; label += 1) {
      if (kinds.size && !kinds.has(this.labels.kind[label])) continue;
      const nodes = this.labels.nodes[label];
      const all = `${this.labels.name[label]} ${this.kind(label)} ${nodes ? nodes.join(" ") : ""}`.toLowerCase();
      if (words.every((word) => all.includes(word))) hits[label] = 1;
    }
    return this.tracks.reduce((sum, track) => sum + track.mark(hits), 0);
  }

  facts(track, i) {
    const label = track.label[i];
    const { memory, types, bytes, nodes, group } = this.labels;
    const members = track.members ? track.members[i] : 1;
    const written = track.bytes ? track.bytes[i] : bytes[label];
    const scale = track.ns_per_unit;
    const rows = [
      ["name", this.name(label)],
      ["kind", this.kind(label)],
      ["begins", `${((track.start[i] - this.zero) / 1e3).toLocaleString("en", { maximumFractionDigits: 3 })} us`],
      ["takes", durationText(track.duration(i))],
    ];
    if (members > 1) rows.unshift(["together", `${members} operations this close; the longest is named`]);
    if (track.before && track.before[i]) rows.push(["waited before", durationText(track.before[i] * scale)]);
    if (track.after && track.after[i]) rows.push(["waited after", durationText(track.after[i] * scale)]);
    if (nodes[label]) rows.push(["nodes of the model", nodes[label].join(", ")]);
    if (written !== null && members === 1) rows.push(["bytes written", `${bytesText(written)} (${written})`]);
    if (memory[label]) rows.push(["memory", memory[label]]);
    if (types[label]) rows.push(["types", types[label]]);
    if (group[label]) rows.push(["issued by", group[label]]);
    rows.push(["row", `${track.group}, ${track.name}`]);
    return rows.filter(([, value]) => value !== "");
  }

  // What happened in an interval: time by kind, clipped to it.
  measure(from, to) {
    const byKind = new Map();
    let count = 0;
    for (const track of this.working) {
      for (let i = Math.max(0, track.from(from) - 1); i < track.count && track.start[i] < to; i += 1) {
        const inside = Math.min(track.end[i], to) - Math.max(track.start[i], from);
        if (inside <= 0) continue;
        count += track.members ? track.members[i] : 1;
        const kind = this.labels.kind[track.label[i]];
        byKind.set(kind, (byKind.get(kind) ?? 0) + inside);
      }
    }
    return { count, kinds: [...byKind].sort((a, b) => b[1] - a[1]) };
  }
}

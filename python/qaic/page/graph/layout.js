// Where the boxes of a graph lie: in layers, each below what it reads. Groups that are closed are one box.

const BOX = { width: 168, height: 40, gap: 22, layer: 34, pass: 12 };
// Places where long arrows pass a layer; beyond, the longest arrows go straight.
const MOST_PASSES = 20000;

class GraphModel {
  constructor(held) {
    this.label = held.label;
    this.texts = held.texts;
    this.names = held.names;
    this.kinds = held.kinds;
    this.facts = held.facts;
    this.edges = held.edges;
    this.colorings = held.colorings;
    this.count = held.names.length;
    this.groups = held.groups.map(([first, end, parent, label]) => ({ first, end, parent, label, open: false, children: [] }));
    this.groups.forEach((group, place) => { if (group.parent >= 0) this.groups[group.parent].children.push(place); });
    // The innermost group of each node: groups come after the one around them.
    this.groupOf = new Int32Array(this.count).fill(-1);
    this.groups.forEach((group, place) => this.groupOf.fill(place, group.first, group.end));
    this.inputs = new Set();
    this.kinds.forEach((kind, node) => { if (this.texts[kind] === "input") this.inputs.add(node); });
    this.openAtFirst();
  }

  // Open level by level what keeps the picture small enough to be read.
  openAtFirst(most = 160) {
    let level = this.groups.flatMap((group, place) => (group.parent < 0 ? [place] : []));
    let boxes = this.count - level.reduce((sum, place) => sum + this.size(place) - 1, 0);
    while (level.length) {
      const inner = level.flatMap((place) => this.groups[place].children);
      const more = level.reduce((sum, place) => sum + this.size(place) - 1, 0) - inner.reduce((sum, place) => sum + this.size(place) - 1, 0);
      if (boxes + more > most) return;
      for (const place of level) this.groups[place].open = true;
      boxes += more;
      level = inner;
    }
  }

  size(place) { return this.groups[place].end - this.groups[place].first; }

  // The boxes that are shown, in the order of nodes: stretches of nodes, of one node or of a closed group.
  boxes() {
    const closedAt = new Map();
    const hidden = new Set();
    this.groups.forEach((group, place) => {
      if (group.parent >= 0 && (hidden.has(group.parent) || !this.groups[group.parent].open)) { hidden.add(place); return; }
      if (!group.open) closedAt.set(group.first, place);
    });
    const found = [];
    for (let node = 0; node < this.count;) {
      const group = closedAt.get(node) ?? -1;
      const end = group >= 0 ? this.groups[group].end : node + 1;
      found.push({ first: node, end, group, x: 0, y: 0, rank: 0 });
      node = end;
    }
    return found;
  }

  // Labels of a group and of those around it.
  path(group) {
    const labels = [];
    for (let at = group; at >= 0; at = this.groups[at].parent) labels.unshift(this.texts[this.groups[at].label]);
    return labels.join(" / ");
  }

  // Have a node shown by itself.
  reveal(node) {
    let changed = false;
    for (let group = this.groupOf[node]; group >= 0; group = this.groups[group].parent) {
      if (!this.groups[group].open) { this.groups[group].open = true; changed = true; }
    }
    return changed;
  }

  // The nodes whose name, operator or a value holds all words.
  search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    this.searched ??= this.searchedTexts();
    const hits = [];
    this.searched.forEach((known, node) => { if (words.every((word) => known.includes(word))) hits.push(node); });
    return hits;
  }

  searchedTexts() {
    const known = this.names.map((name, node) => `${this.texts[name]}\n${this.texts[this.kinds[node]]}`);
    for (let edge = 0; edge < this.edges.length; edge += 3) {
      const value = `\n${this.texts[this.edges[edge + 2]]}`;
      known[this.edges[edge]] += value;
      known[this.edges[edge + 1]] += value;
    }
    return known.map((text) => text.toLowerCase());
  }
}

class Layout {
  constructor(model) {
    this.inputs = model.inputs;
    this.boxes = model.boxes();
    this.boxOf = new Int32Array(model.count);
    this.boxes.forEach((box, place) => this.boxOf.fill(place, box.first, box.end));
    this.collect(model.edges);
    this.rank();
    this.placeInLayers();
    this.arrange();
    this.measure();
  }

  // Arrows between boxes, once each.
  collect(edges) {
    const seen = new Map();
    this.arrows = [];
    for (let edge = 0; edge < edges.length; edge += 3) {
      const from = this.boxOf[edges[edge]];
      const to = this.boxOf[edges[edge + 1]];
      if (from === to) continue;
      const key = from * this.boxes.length + to;
      const known = seen.get(key);
      if (known) { known.values.push(edges[edge + 2]); continue; }
      const arrow = { from, to, values: [edges[edge + 2]], passes: [] };
      seen.set(key, arrow);
      this.arrows.push(arrow);
    }
    this.after = this.boxes.map(() => []);
    this.before = this.boxes.map(() => []);
    for (const arrow of this.arrows) {
      this.after[arrow.from].push(arrow);
      this.before[arrow.to].push(arrow);
    }
  }

  rank() {
    // Boxes are in an order in which arrows point forward; one that points back does not count.
    this.boxes.forEach((box, place) => {
      for (const { from } of this.before[place]) {
        if (from < place) box.rank = Math.max(box.rank, this.boxes[from].rank + 1);
      }
    });
    // Inputs, and what comes from constants alone, lie just above their first reader.
    this.loose = this.boxes.map(() => false);
    const { loose } = this;
    this.boxes.forEach((box, place) => {
      const isInput = box.group < 0 && this.inputs.has(box.first);
      loose[place] = !isInput && this.before[place].every(({ from }) => from > place || loose[from]);
    });
    for (let place = this.boxes.length - 1; place >= 0; place -= 1) {
      const readers = this.after[place].filter(({ to }) => to > place);
      if ((this.before[place].length && !loose[place]) || !readers.length) continue;
      this.boxes[place].rank = readers.reduce((least, { to }) => Math.min(least, this.boxes[to].rank), Infinity) - 1;
    }
  }

  placeInLayers() {
    const last = this.boxes.reduce((most, box) => Math.max(most, box.rank), 0);
    this.layers = Array.from({ length: last + 1 }, () => []);
    this.boxes.forEach((box) => {
      box.up = []; box.down = []; box.width = BOX.width; box.pull = this.loose[this.boxOf[box.first]] ? 0.05 : 1;
      this.layers[box.rank].push(box);
    });
    let room = MOST_PASSES;
    const long = this.arrows.filter(({ from, to }) => from < to);
    long.sort((one, two) => this.span(one) - this.span(two));
    for (const arrow of long) {
      const [from, to] = [this.boxes[arrow.from], this.boxes[arrow.to]];
      let above = from;
      if (this.span(arrow) - 1 <= room) {
        for (let rank = from.rank + 1; rank < to.rank; rank += 1) {
          const pass = { rank, x: 0, y: 0, width: BOX.pass, pull: 0.5, up: [above], down: [] };
          above.down.push(pass);
          this.layers[rank].push(pass);
          arrow.passes.push(pass);
          above = pass;
          room -= 1;
        }
      }
      above.down.push(to);
      to.up.push(above);
    }
  }

  span({ from, to }) { return this.boxes[to].rank - this.boxes[from].rank; }

  // Bring each box near to the middle of its neighbors, down and up in turns.
  arrange() {
    for (const layer of this.layers) this.spread(layer, (box, place) => (place - (layer.length - 1) / 2) * (BOX.width + BOX.gap));
    // What comes from constants alone follows, and does not pull.
    const mean = (near, own) => {
      let [sum, weight] = [0, 0];
      for (const { x, pull } of near) { sum += x * pull; weight += pull; }
      return weight ? sum / weight : own;
    };
    const turns = this.boxes.length > 3000 ? 4 : 8;
    for (let turn = 0; turn < turns; turn += 1) {
      for (const layer of this.layers) this.spread(layer, (box) => mean(box.up, mean(box.down, box.x)));
      for (const layer of [...this.layers].reverse()) this.spread(layer, (box) => mean(box.down, mean(box.up, box.x)));
    }
    for (const layer of this.layers) this.spread(layer, (box) => mean([...box.up, ...box.down], box.x));
    this.straighten();
  }

  // Long graphs would drift aside: take away the mean of the layers around each.
  straighten(around = 16) {
    const sums = [0];
    for (const layer of this.layers) {
      const boxes = layer.filter(({ first }) => first !== undefined);
      sums.push(sums.at(-1) + boxes.reduce((sum, { x }) => sum + x, 0) / (boxes.length || 1));
    }
    this.layers.forEach((layer, rank) => {
      const [from, to] = [Math.max(0, rank - around), Math.min(this.layers.length, rank + around + 1)];
      const middle = (sums[to] - sums[from]) / (to - from);
      for (const box of layer) box.x -= middle;
    });
  }

  // Order a layer by where its boxes would be, and move them apart as little as that takes.
  spread(layer, wanted) {
    layer.forEach((box, place) => { box.wanted = wanted(box, place); box.place = place; });
    layer.sort((one, two) => one.wanted - two.wanted || one.place - two.place);
    // Runs of boxes that touch lie around the mean of where they would be.
    const runs = [];
    for (const box of layer) {
      let run = { boxes: [box], sum: box.wanted - box.width / 2, width: box.width + BOX.gap };
      run.start = run.sum;
      while (runs.length && runs.at(-1).start + runs.at(-1).width > run.start) {
        const before = runs.pop();
        const sum = before.sum + run.sum - run.boxes.length * before.width;
        for (const moved of run.boxes) before.boxes.push(moved);
        run = { boxes: before.boxes, sum, width: before.width + run.width };
        run.start = run.sum / run.boxes.length;
      }
      runs.push(run);
    }
    for (const run of runs) {
      let x = run.start;
      for (const box of run.boxes) { box.x = x + box.width / 2; x += box.width + BOX.gap; }
    }
  }

  measure() {
    const step = BOX.height + BOX.layer;
    this.left = Infinity; this.right = -Infinity;
    this.layers.forEach((layer, rank) => {
      for (const box of layer) {
        box.y = rank * step;
        this.left = Math.min(this.left, box.x - box.width / 2);
        this.right = Math.max(this.right, box.x + box.width / 2);
      }
    });
    if (!this.boxes.length) { this.left = 0; this.right = BOX.width; }
    this.top = -BOX.height / 2;
    this.bottom = (this.layers.length - 1) * step + BOX.height / 2;
  }
}

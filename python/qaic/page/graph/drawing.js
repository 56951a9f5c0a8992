// Draws boxes and arrows on a canvas; the view is a scale and the point of the layout in the middle.

const SMALLEST_TEXT = 0.45;
const FONT = 'system-ui, "DejaVu Sans", sans-serif';
// From little to much, readable under dark letters.
const HEAT = ["#e4e9f0", "#fbe3b5", "#f9c985", "#f5a765", "#ef8354", "#e25f4c"];

class GraphDrawing {
  constructor(model, canvas) {
    this.model = model;
    this.canvas = canvas;
    this.width = 320;
    this.height = 320;
    this.shortened = new Map();
  }

  resize(width, height) {
    const dots = window.devicePixelRatio || 1;
    Object.assign(this, { width, height });
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(height * dots);
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
  }

  named() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(["card", "ink", "soft", "line", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  // Points of the canvas are multiples of the layout's, moved.
  draw(layout, view, chosen, hits, coloring) {
    const pen = this.canvas.getContext("2d");
    const dots = window.devicePixelRatio || 1;
    const named = this.named();
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.translate(this.width / 2 - view.x * view.scale, this.height / 2 - view.y * view.scale);
    pen.scale(view.scale, view.scale);
    const seen = {
      left: view.x - this.width / 2 / view.scale, right: view.x + this.width / 2 / view.scale,
      top: view.y - this.height / 2 / view.scale, bottom: view.y + this.height / 2 / view.scale,
    };
    const near = chosen === null ? -1 : layout.boxOf[chosen];
    this.drawn = 0;
    this.arrows(pen, layout, seen, view, named, near);
    const marked = new Set(hits ?? []);
    layout.boxes.forEach((box, place) => {
      if (box.x + BOX.width / 2 < seen.left || box.x - BOX.width / 2 > seen.right) return;
      if (box.y + BOX.height / 2 < seen.top || box.y - BOX.height / 2 > seen.bottom) return;
      this.drawn += 1;
      this.box(pen, box, view, named, { coloring, chosen: place === near, marked, searching: hits !== null });
    });
  }

  arrows(pen, layout, seen, view, named, near) {
    const paths = { others: new Path2D(), chosen: new Path2D(), heads: new Path2D() };
    for (const arrow of layout.arrows) {
      const [from, to] = [layout.boxes[arrow.from], layout.boxes[arrow.to]];
      if (Math.max(from.y, to.y) < seen.top - BOX.height || Math.min(from.y, to.y) > seen.bottom + BOX.height) continue;
      const touched = arrow.from === near || arrow.to === near;
      this.arrow(touched ? paths.chosen : paths.others, from, arrow.passes, to);
      if (view.scale > 0.25) this.head(paths.heads, to);
    }
    pen.lineJoin = "round";
    pen.lineWidth = Math.min(2, Math.max(1, 0.7 / view.scale));
    pen.strokeStyle = named.soft;
    pen.globalAlpha = 0.55;
    pen.stroke(paths.others);
    pen.fillStyle = named.soft;
    pen.fill(paths.heads);
    pen.globalAlpha = 1;
    pen.strokeStyle = named.accent;
    pen.lineWidth *= 2;
    pen.stroke(paths.chosen);
  }

  arrow(path, from, passes, to) {
    const points = [[from.x, from.y + BOX.height / 2], ...passes.flatMap(({ x, y }) => [[x, y - BOX.height / 2], [x, y + BOX.height / 2]]), [to.x, to.y - BOX.height / 2]];
    path.moveTo(...points[0]);
    for (let at = 1; at < points.length; at += 1) {
      const [[x0, y0], [x1, y1]] = [points[at - 1], points[at]];
      if (x0 === x1) path.lineTo(x1, y1);
      else { const middle = (y0 + y1) / 2; path.bezierCurveTo(x0, middle, x1, middle, x1, y1); }
    }
  }

  head(path, to) {
    const tip = to.y - BOX.height / 2;
    path.moveTo(to.x, tip);
    path.lineTo(to.x - 4, tip - 8);
    path.lineTo(to.x + 4, tip - 8);
    path.closePath();
  }

  box(pen, box, view, named, { coloring, chosen, marked, searching }) {
    const [left, top] = [box.x - BOX.width / 2, box.y - BOX.height / 2];
    let found = 0;
    if (searching) for (let node = box.first; node < box.end; node += 1) found += marked.has(node);
    pen.globalAlpha = searching && !found && !chosen ? 0.25 : 1;
    const outline = new Path2D();
    outline.roundRect(left, top, BOX.width, BOX.height, box.group >= 0 ? 4 : 10);
    if (box.group >= 0) {
      // A pile: there is more below.
      pen.fillStyle = named.card;
      pen.strokeStyle = named.soft;
      pen.lineWidth = 1;
      const below = new Path2D();
      below.roundRect(left + 4, top + 4, BOX.width, BOX.height, 4);
      pen.fill(below);
      pen.stroke(below);
    }
    pen.save();
    pen.clip(outline);
    let x = left;
    for (const [color, share] of coloring.parts(box)) {
      pen.fillStyle = color;
      pen.fillRect(x, top, BOX.width * share + 0.5, BOX.height);
      x += BOX.width * share;
    }
    pen.restore();
    pen.strokeStyle = chosen || found ? named.accent : "#00000040";
    pen.lineWidth = chosen ? 4 : found ? 3 : 1;
    pen.stroke(outline);
    if (view.scale >= SMALLEST_TEXT) this.text(pen, box);
    pen.globalAlpha = 1;
  }

  text(pen, box) {
    const { model } = this;
    pen.fillStyle = "#14171c";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const group = box.group >= 0 ? model.groups[box.group] : null;
    const large = group ? `\u25b8 ${group.label === undefined ? "" : model.texts[group.label]}` : model.texts[model.kinds[box.first]];
    const small = group ? `${(box.end - box.first).toLocaleString("en")} nodes` : model.texts[model.names[box.first]];
    pen.font = `600 13px ${FONT}`;
    pen.fillText(this.short(pen, large, 0), box.x, box.y - 8);
    pen.font = `11px ${FONT}`;
    pen.fillText(this.short(pen, small, 1), box.x, box.y + 9);
  }

  // A text that fits into a box; a long one loses its middle.
  short(pen, text, row) {
    const key = `${row}${text}`;
    const known = this.shortened.get(key);
    if (known !== undefined) return known;
    const room = BOX.width - 14;
    let size = text.length;
    let shown = text;
    while (size > 3 && pen.measureText(shown).width > room) {
      size = Math.min(size - 1, Math.ceil((size * room) / pen.measureText(shown).width));
      const tail = Math.floor(((size - 1) * 2) / 3);
      shown = `${text.slice(0, size - 1 - tail)}\u2026${text.slice(text.length - tail)}`;
    }
    this.shortened.set(key, shown);
    return shown;
  }
}

// What color a box has: of the shares of its texts, or of its amount beside the largest.
class GraphColoring {
  constructor(held, count) {
    this.name = held.name;
    this.values = held.values;
    this.colors = held.colors;
    this.codes = held.codes;
    this.amounts = held.amounts;
    this.largest = 0;
    this.total = (held.amounts ?? []).reduce((sum, amount) => sum + (amount ?? 0), 0);
    this.counts = held.values?.map(() => 0);
    for (let node = 0; this.counts && node < count; node += 1) this.counts[held.codes[node]] += 1;
  }

  heat(amount) {
    if (amount === null) return OTHER;
    // A square root lets the many small ones differ.
    const share = this.largest ? Math.sqrt(amount / this.largest) : 0;
    return HEAT[Math.min(HEAT.length - 1, Math.floor(share * HEAT.length))];
  }

  scaleTo(boxes) { this.largest = boxes.reduce((most, box) => Math.max(most, this.amount(box) ?? 0), 0); }

  // Microseconds of a box; null where nothing in it was measured.
  amount(box) {
    let sum = null;
    for (let node = box.first; node < box.end; node += 1) if (this.amounts[node] !== null) sum = (sum ?? 0) + this.amounts[node];
    return sum;
  }

  // Color and share of each part of a box.
  parts(box) {
    if (this.amounts) {
      return [[this.heat(this.amount(box)), 1]];
    }
    if (box.end - box.first === 1) return [[this.colors[this.codes[box.first]], 1]];
    const counts = new Map();
    for (let node = box.first; node < box.end; node += 1) counts.set(this.codes[node], (counts.get(this.codes[node]) ?? 0) + 1);
    return [...counts].sort(([one], [two]) => one - two).map(([code, count]) => [this.colors[code], count / (box.end - box.first)]);
  }
}

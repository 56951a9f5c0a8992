// What happens when the page opens. Faults are counted where a test, or a person with the inspector, can see them.

const root = document.documentElement;
root.dataset.faults = "0";
const fault = (what) => {
  root.dataset.faults = String(Number(root.dataset.faults) + 1);
  root.dataset.fault = String(what).slice(0, 300);
};
window.addEventListener("error", (event) => fault(event.message));
window.addEventListener("unhandledrejection", (event) => fault(event.reason));
document.addEventListener("securitypolicyviolation", (event) => fault(event.violatedDirective));

tables.enhance(document);
// A link opens the closed part that it leads to; paper has all of them.
const openPart = (hash) => {
  const details = hash && document.getElementById(decodeURIComponent(hash.slice(1)))?.querySelector(":scope > details");
  if (details) details.open = true;
};
document.querySelector("nav").addEventListener("click", (event) => openPart(event.target.hash));
window.addEventListener("beforeprint", () => document.querySelectorAll(".folded > details").forEach((part) => { part.open = true; }));
openPart(location.hash);
(async () => {
  let timeline = null;
  const data = document.getElementById("timeline-data");
  if (data) {
    const section = document.getElementById("timeline");
    try {
      timeline = new Timeline(section, new TimelineModel(await payload.read(data)));
      // A search for the data in the document finds it once, in the model.
      data.remove();
      const { samples, shown } = timeline.model.header;
      if (samples.length > 1) timeline.showSample(samples[shown]);
      timeline.draw();
      section.dataset.state = "drawn";
    } catch (error) {
      section.querySelector('[data-part="panel"]').textContent =
        `This browser cannot draw the timeline (${error}). The tables below are complete; a browser of 2023 or newer draws it.`;
      section.dataset.state = "failed";
      throw error;
    }
  }
  const drawn = document.getElementById("graph-data");
  if (drawn) {
    const section = document.getElementById("graph");
    try {
      const held = await payload.json(drawn);
      drawn.remove();
      const graph = new Graph(section, held.map((one) => new GraphModel(one)));
      graph.draw();
      // A choice in one picture is marked in the other, and in the tables.
      graph.chose = (name) => { if (!timeline?.find(name)) tables.find([name]); };
      if (timeline) timeline.chose = (names) => graph.mark(names);
      section.dataset.state = "drawn";
    } catch (error) {
      section.querySelector('[data-part="panel"]').textContent =
        `This browser cannot draw the graph (${error}). The tables below are complete; a browser of 2023 or newer draws it.`;
      section.dataset.state = "failed";
      throw error;
    }
  }
  root.dataset.openedMs = performance.now().toFixed(0);
  root.dataset.requests = String(performance.getEntriesByType("resource").length);
  root.dataset.state = "ready";
})();

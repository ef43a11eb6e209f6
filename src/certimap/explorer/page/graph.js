// The graph: Cytoscape.js draws edges and moves the view, dagre places the nodes, and cards lie on top of both.
const LEAST = 0.2; // zoom that a fit keeps to: the rest of the graph is outside then
const NEAR = 0.55; // zoom below which cards show only the name and the state
const styles = () => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [
    { selector: "node", style: { shape: "round-rectangle", width: "data(w)", height: "data(h)", "background-opacity": 0, "border-width": 0, "overlay-opacity": 0 } },
    { selector: "edge", style: { width: 2, "line-color": color("--quiet"), "target-arrow-color": color("--quiet"), "curve-style": "bezier", opacity: 0.65, "overlay-opacity": 0 } },
    { selector: "edge[?arrow]", style: { "target-arrow-shape": "triangle" } },
  ];
};

export class Graph {
  constructor(board, holder, cards, directed) {
    Object.assign(this, { board, holder, cards, directed });
    this.cy = cytoscape({ container: holder, style: styles(), minZoom: 0.05, maxZoom: 2.5, boxSelectionEnabled: false, autounselectify: true });
    this.cy.on("viewport", () => this.follow());
    this.cy.on("position", "node", (e) => this.place(e.target));
    holder.append(cards); // wheel and drags on cards reach the graph
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.cy.style(styles()));
    cards.addEventListener("focusin", (e) => this.reveal(e.target.closest(".card")?.dataset.name));
  }

  /** Place cards (by name) and the edges among them. */
  show(cards, edges) {
    const layout = new dagre.graphlib.Graph({ multigraph: false });
    layout.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 56 });
    layout.setDefaultEdgeLabel(() => ({}));
    this.cards.classList.remove("far");
    this.roots = new Map([...cards].map(([name, card]) => [name, card.root]));
    for (const [name, root] of this.roots) {
      root.dataset.name = name;
      root.style.height = "";
      layout.setNode(name, { width: root.offsetWidth, height: root.offsetHeight });
    }
    edges.forEach(([a, b]) => layout.setEdge(a, b));
    dagre.layout(layout);
    const node = (name) => { const { x, y, width, height } = layout.node(name); return { data: { id: `n${name}`, name, w: width, h: height }, position: { x, y } }; };
    const edge = ([a, b]) => ({ data: { source: `n${a}`, target: `n${b}`, arrow: this.directed } });
    this.cy.batch(() => { this.cy.elements().remove(); this.cy.add([...[...this.roots.keys()].map(node), ...edges.map(edge)]); });
    this.cy.nodes().forEach((n) => this.place(n));
    this.fit();
  }

  place(node) {
    const style = this.roots.get(node.data("name"))?.style, { x, y } = node.position();
    if (style) Object.assign(style, { height: `${node.data("h")}px`, left: `${x - node.data("w") / 2}px`, top: `${y - node.data("h") / 2}px` });
  }

  follow() {
    const { x, y } = this.cy.pan(), zoom = this.cy.zoom();
    this.cards.style.transform = `translate(${x}px, ${y}px) scale(${zoom})`;
    this.cards.style.setProperty("--far", `${Math.min(34, 12.5 / zoom)}px`);
    this.cards.classList.toggle("far", zoom < NEAR);
  }

  fit() {
    this.cy.resize();
    this.cy.fit(undefined, 16);
    this.cy.zoom({ level: 0.96 * this.cy.zoom(), renderedPosition: { x: this.cy.width() / 2, y: 0 } }); // room for a line below
    if (this.cy.zoom() > 1.2) { this.cy.zoom(1.2); this.cy.center(); }
    if (this.cy.zoom() < LEAST) {
      this.cy.zoom(LEAST);
      this.cy.center(this.cy.nodes().sort((a, b) => b.degree() - a.degree())[0]);
      const box = this.cy.elements().renderedBoundingBox();
      if (box.h < this.cy.height()) this.cy.panBy({ x: 0, y: this.cy.height() / 2 - (box.y1 + box.y2) / 2 });
    }
    this.follow();
  }

  zoomBy(factor) {
    this.cy.zoom({ level: this.cy.zoom() * factor, renderedPosition: { x: this.cy.width() / 2, y: this.cy.height() / 2 } });
  }

  /** Move the view so that a card is seen; `near` also comes close. */
  reveal(name, near = false) {
    if (!this.cards.classList.contains("graph")) return; // a list scrolls by itself
    this.board.scrollTop = this.board.scrollLeft = this.holder.scrollTop = this.holder.scrollLeft = 0; // focus scrolls
    const node = this.cy.getElementById(`n${name}`);
    if (!node.length) return;
    if (near && this.cy.zoom() < NEAR) this.cy.zoom(0.9);
    const box = node.renderedBoundingBox(), inside = box.x1 >= 0 && box.y1 >= 0 && box.x2 <= this.cy.width() && box.y2 <= this.cy.height();
    if (near || !inside) this.cy.center(node);
    this.follow(); // now: what is hidden takes no focus
  }
}

/* Search: guides come before generated pages, and these before the reference of the modules. */
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  /* Returns the score of a result [docname, title, anchor, descr, score, filename, kind]. */
  score: ([docname, , , , score, , kind]) => {
    if (kind === "index" || kind === "object" || docname.startsWith("generated/api/")) {
      return Math.min(score, 20) - 40;
    }
    if (/^generated\/(changelog|contributing|errors)$/.test(docname)) return score - 15;
    if (docname.startsWith("generated/benchmarks/")) return score;
    return score + (docname.startsWith("generated/") ? 4 : 10);
  },
};

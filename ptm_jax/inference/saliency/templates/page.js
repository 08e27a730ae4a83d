'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const BLUE = '33,102,172', ORANGE = '224,130,20'; // colour-blind readers tell them apart
const element = id => document.getElementById(id);
function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}
function made(tag, parent, text = '', fields = {}) {
  const one = document.createElement(tag);
  one.textContent = text;
  for (const [name, value] of Object.entries(fields))
    if (name in one) one[name] = value; else one.setAttribute(name, value);
  if (parent) parent.append(one);
  return one;
}
function options(select, names, act) {
  names.forEach((name, i) => select.append(new Option(name, i)));
  select.addEventListener('change', act);
}
// A list of buttons with one stop of the key Tab; arrows, Home and End move in it.
function choices(box, texts, { choose, hover }) {
  const all = texts.map((text, i) => made('span', box, text || ' ', {
    className: 'token', role: 'button', tabIndex: i ? -1 : 0 }));
  const moved = i => {
    if (!all[i]) return;
    all.forEach(one => { one.tabIndex = -1; });
    all[i].tabIndex = 0; all[i].focus();
  };
  all.forEach((one, i) => {
    one.setAttribute('aria-pressed', false);
    if (choose) one.addEventListener('click', () => choose(i));
    if (hover) for (const event of ['mouseenter', 'focus'])
      one.addEventListener(event, () => hover(i));
    one.addEventListener('keydown', event => {
      const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1,
        Home: 0, End: all.length - 1 }[event.key];
      if (to !== undefined) moved(to);
      else if (choose && (event.key === 'Enter' || event.key === ' ')) choose(i);
      else return;
      event.preventDefault();
    });
  });
  return { all, press: i => all.forEach((one, j) => one.setAttribute('aria-pressed', i === j)) };
}
// Work in pieces, so that the page answers meanwhile.
function inPieces(works) {
  if (!works.length) return;
  works.shift()();
  setTimeout(inPieces, 0, works);
}

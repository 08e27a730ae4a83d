"""Tables of English: function words, abbreviations, irregular forms, and WordNet's lemmas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SUPERSENSES = tuple(
    """
    adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute
    noun.body noun.cognition noun.communication noun.event noun.feeling noun.food noun.group
    noun.location noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession
    noun.process noun.quantity noun.relation noun.shape noun.state noun.substance noun.time
    verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption
    verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession
    verb.social verb.stative verb.weather adj.ppl
    """.split()
)
"""The 45 lexicographer files of WordNet by their number (lexnames(5WN))."""
SENSE_PARTS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
"""{ss_type of WordNet's sense keys: part of speech}."""
FILE_PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
"""{first part of a supersense, ending of a file of WordNet: part of speech}."""
STOP_WORDS = frozenset(
    """
    ours ourselves myself your yours yourself yourselves himself hers herself itself they them their
    theirs themselves
    what which whom this that these those were been being have having does doing because until while
    with about against
    between into through during before after above below from down over under again further then
    once here there when
    where both each more most other some such only same than very will just should
    """.split()
)
"""Grammatical words of more than 3 letters."""
GRAMMATICAL = frozenset(
    "a an and are as at but by did do does for from had has have he her his how if in is it "
    "its of on or she since that the "
    "their these they this those to was were what when where which while who whom whose why "
    "with".split()
)
"""Words that begin no name, although a sentence may capitalise them."""
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc al fig figs eq eqs sec no nos vol pp ed eds cf resp "
    "approx inc ltd co corp dept "
    "gen col lt capt sgt rev hon gov sen rep jan feb mar apr jun jul aug sep sept oct nov "
    "dec e.g i.e viz".split()
)
"""Abbreviations that end in a full stop inside a sentence."""
_FORMS = """
bad: worse worst; be: were been being; beat: beaten; become: became; begin: began begun; bite:
bitten; blow: blew blown; break: broke broken; bring: brought; build: built; buy: bought; catch:
caught; child: children; choose: chose chosen; come: came; deal: dealt; die: dying; do: does done;
draw: drawn drew; drink: drank; drive: drove driven; eat: eaten; fall: fell fallen; far: further;
feel: felt; fight: fought; find: found; fly: flew; foot: feet; forget: forgotten forgot; freeze:
frozen froze; get: gotten; give: gave given; go: went going; good: better best; grow: grew grown;
hang: hung; have: having; hear: heard; hide: hidden; hold: held; keep: kept; know: known knew; lead:
led; leave: left leaving; lie: lying; life: lives; lose: lost; make: made; mean: meant; pay: paid;
ride: ridden rode; ring: rang; rise: rose risen; say: said saying; see: seen; sell: sold; send:
sent; shake: shook shaken; shoot: shot; show: shown; sing: sang; sink: sank; sleep: slept; speak:
spoke spoken; spend: spent; stand: stood; steal: stole stolen; stick: stuck; strike: struck; swear:
sworn; sweep: swept; swim: swam; swing: swung; take: took taken; teach: taught; tear: torn tore;
tell: told; think: thought; throw: threw thrown; tooth: teeth; understand: understood; wake: woken
woke; wear: wore worn; weep: wept; wife: wives; woman: women;
write: written wrote
"""
_BASES = [part.split(":") for part in _FORMS.replace("\n", " ").split(";")]
IRREGULAR = {word: base.strip() for base, forms in _BASES for word in forms.split()}
"""{irregular form: its lemma in WordNet}, of frequent words."""
ENDINGS = {
    "n": "s: ses:s ves:f xes:x zes:z ches:ch shes:sh men:man ies:y",
    "v": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "a": "er: est: er:e est:e",
    "r": "",
}
"""WordNet's rules of detachment (morphy(7WN)): ending, colon, replacement."""


def lemmas(
    word: str, part: str, names: Mapping[str, Any], irregular: Mapping[str, Sequence[str]]
) -> list[str]:
    """Returns the lemmas of a word of a part of speech that are among `names`.

    They are as WordNet's morphy finds them: the word itself, and its irregular lemmas or, where
    there are none, the forms that the rules give.
    """
    if word in irregular:
        forms = [word, *irregular[word]]
    else:
        forms = [word, *_detached(word, part)]
    return [form for form in dict.fromkeys(forms) if form in names]


def _detached(word: str, part: str) -> Iterator[str]:
    for rule in ENDINGS[part].split():
        ending, _, instead = rule.partition(":")
        if word.endswith(ending) and len(word) > len(ending):
            yield word.removesuffix(ending) + instead

"""Languages of text: `language:CODE=SOURCE` is text, `language:CODE-CODE=PATH` are translations.
Domains of text: `domain:NAME=SOURCE`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ptm_jax.core.errors import UserError, unknown

START, DOMAIN = "language:", "domain:"
CODES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
    id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
    lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
    ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
    tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    als arz ast azb bar bpy ceb ckb dsb fil haw hsb ilo lmo mai min mwl nap nds new pms pnb sah scn
    sco simple war wuu yue
    """.split()
)
"""ISO 639-1, and the longer codes of Wikipedias. A region or script may follow: pt_BR, zh_Hans."""
NAMES = dict(
    pair.split(":")
    for pair in """
    arabic:ar bengali:bn bulgarian:bg catalan:ca chinese:zh croatian:hr czech:cs danish:da dutch:nl
    english:en estonian:et finnish:fi french:fr german:de greek:el hebrew:he hindi:hi hungarian:hu
    icelandic:is indonesian:id irish:ga italian:it japanese:ja korean:ko latin:la latvian:lv
    lithuanian:lt macedonian:mk norwegian:no persian:fa polish:pl portuguese:pt romanian:ro
    russian:ru serbian:sr slovak:sk slovenian:sl spanish:es swahili:sw swedish:sv tamil:ta thai:th
    turkish:tr ukrainian:uk urdu:ur vietnamese:vi eng:en deu:de ger:de fra:fr fre:fr spa:es zho:zh
    deutsch:de français:fr francais:fr español:es espanol:es castellano:es italiano:it português:pt
    portugues:pt nederlands:nl polski:pl svenska:sv suomi:fi norsk:no dansk:da türkçe:tr čeština:cs
    русский:ru українська:uk 日本語:ja 中文:zh 한국어:ko العربية:ar ελληνικά:el
    """.split()
)
"""English names, names in the language, and three-letter codes, that users write in place of a
code."""
_REGION = re.compile(r"(_[A-Z]{2}|_[A-Z][a-z]{3}|_rom)?")


def check(code: str) -> str:
    """Returns a language code. Raises UserError with the nearest for an unknown one."""
    name, mark, region = code.partition("_")
    if name.lower() in NAMES:
        raise UserError(f"{code!r} is no language code; write {NAMES[name.lower()]}")
    if name not in CODES:
        raise unknown("language code", code, CODES)
    if not _REGION.fullmatch(mark + region):
        raise UserError(
            f"language code {code!r} ends with {region!r}; write a region or a script, as pt_BR "
            "or zh_Hans"
        )
    return code


def parsed(source: str) -> tuple[tuple[str, ...], str]:
    """Returns (one or two languages, what is after the =) of a source. Raises UserError."""
    names, equals, text = source.removeprefix(START).partition("=")
    languages = tuple(check(name) for name in names.split("-"))
    if not equals or not text or len(languages) > 2:
        raise UserError(
            f"{source} names no text; write language:de=FILE for text, language:de-en=PATH for "
            "translations"
        )
    if len({*languages}) < len(languages):
        raise UserError(f"{source} names one language twice; translations need two")
    return languages, text


def of_domain(source: str) -> tuple[str, str]:
    """Returns (name of the domain, what is after the =) of a source. Raises UserError."""
    name, equals, text = source.removeprefix(DOMAIN).partition("=")
    if not re.fullmatch(r"\w+", name) or not equals or not text:
        raise UserError(
            f"{source} names no text; write domain:NAME=SOURCE, with a name of letters, digits "
            "and _"
        )
    return name, text


def grouped(sources: Sequence[str]) -> dict[str, list[str]]:
    """Returns {languages, as "de" or "de-en", or a domain: their sources} in order; {} without.
    Raises UserError where some sources have a language or a domain and others have none."""
    sources = [sources] if isinstance(sources, str) else list(sources)
    tags = {source: tag for source in sources for tag in (START, DOMAIN) if source.startswith(tag)}
    if tags and (len(tags) < len({*sources}) or len({*tags.values()}) > 1):
        first, tag = next(iter(tags.items()))
        other = next(source for source in sources if tags.get(source) != tag)
        what, form = ("language", "CODE") if tag == START else ("domain", "NAME")
        raise UserError(f"{other} has no {what}, and {first} has one; write {tag}{form}={other}")
    parts: dict[str, list[str]] = {}
    for source, tag in tags.items():
        name = "-".join(parsed(source)[0]) if tag == START else of_domain(source)[0]
        parts.setdefault(name, []).append(source)
    return parts

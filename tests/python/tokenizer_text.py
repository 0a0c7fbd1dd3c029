# SPDX-License-Identifier: Apache-2.0
"""Lines to tokenize: many scripts, emoji and joiners, combining marks, control characters, blanks of every kind."""

import random

SENTENCES = """
The quick brown fox jumps over the lazy dog; it's 3.14 times faster than we'd thought, isn't it?
Attention is computed block by block, and the blocks merge in key order. I'll say they've done what you're asking.
def forward(x): return self.dropout(F.gelu(self.dense(x)))  # 0x1F, 1e-05, snake_case, camelCase, kebab-case
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. STRAẞE, ﬁnanzielle Ämter.
Les élèves préfèrent l'été à l'hiver; où sont-ils allés, et à quelle heure? ÇA VA, ŒUVRE, naïve.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío. ¿Añoraba a su querido cachorro? ¡Sí!
Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлки, Їжак, Њива, Ђорђе.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΣΊΣΥΦΟΣ, ὀξεῖα, ΰ, Ἀθῆναι.
שלום עולם, זֶהוּ טקסט עִבְרִי עם נִקּוּד. אבג 123 דהו.
مرحبا بالعالم، هذا نصٌّ عربيٌّ مُشَكَّل. ﷺ ﻻ ۱۲۳ ٤٥٦ پچژگ اردو میں لکھا ہوا۔
नमस्ते दुनिया, क्षत्रिय ज्ञान श्रृंखला हिन्दी में। १२३ क़लम
বাংলা ভাষায় কিছু লেখা। தமிழ் மொழி ஸ்ரீ. తెలుగు భాష. ಕನ್ನಡ ಭಾಷೆ. മലയാളം ഭാഷ. ਪੰਜਾਬੀ ગુજરાતી සිංහල
สวัสดีชาวโลก ภาษาไทยไม่มีวรรคระหว่างคำ ๑๒๓ ກ່ຽວກັບພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ བོད་སྐད།
我能吞下玻璃而不伤身体。我們在學習自然語言處理。「引号」、（括号）！２０２４年１２月。
色は匂へど散りぬるを。カタカナ、ﾊﾝｶｸｶﾅ、ー、々〆〇。がぎぐ か゛ ㍿ ㌔ ㋿
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글 ㄱㄴㄷ ﾡ
ქართული ენა მხედრული. Հայերեն լեզու. አማርኛ ቋንቋ። ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᐃᓄᒃᑎᑐᑦ ⵜⴰⵎⴰⵣⵉⵖⵜ
Tiếng Việt có dấu: Ngày mai trời sẽ mưa to ở Hà Nội. İstanbul'da ılık ığdır, IĞDIR.
👍 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺︎ 🧑🏿‍🚀 1️⃣ #️⃣ 🤷‍♀️ 🫠
x² + y² = z²; ½ ¾ ⅓ ① ⑳ Ⅷ ⅷ ℃ ℌ ∑∫√≠≤ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 µm Å Ω
“Quotes” ‘single’ «guillemets» — em – en … · • † ‡ § ¶ © ® ™ € £ ¥ ₿ № ‰
user@example.com https://example.org/a/b?c=d&e=%20f#g C:\\path\\to ~/.bashrc $HOME `code` *bold* _it_ [x](y) {a: 1}
""".strip().split("\n")

BLANKS = [" ", " ", " ", "  ", "   ", "\t", "\r", "\x0b", "\x0c", "\x85", "\u00a0", "\u1680", "\u2003", "\u2009", "\u2028",
          "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff"]
MARKS = ["\u0301", "\u0300", "\u0308", "\u0323", "\u0327", "\u0345", "\u0302\u0323", "\u0328\u0301", "\u05b0", "\u064b",
         "\u093c", "\u094d", "\u0e49", "\u20dd", "\u200d", "\u200c", "\ufe0f", "\ufe0e", "\u3099", "\u1dc4", "\u0f71\u0f72"]
CONTROLS = ["\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\x9f", "\u00ad", "\u200e", "\u202e", "\u2066", "\ufffd", "\ufffe",
            "\U000e0041", "\ue000", "\U0010ffff"]
ODD = ["'s", "'LL", "n't", " 'm", "do not", "...", "!!!!", "-----", "====", "##", "▁", "▁▁", "Ġ", "<0x41>", "000111", "12345678",
       "aaaaaaaa", "abababab", "ÀÉÎ", "ǅ", "ß", "ﬃ", "İ", "ſ", "\u1100\u1161\u11a8", "가", "각\u11a8", "a\u0300\u0323\u0308",
       "\u0f73", "\u0344", "\u2126", "\u212b", "①\u0301", "½\u0338", "ﷺ", "㎏", "e\u0301\u200d", "\u0301", "\u0300\u0301 ", "|", "</w>"]


def any_character(rng):
    """A code point from a block drawn at random, so that rare scripts come as often as large ones."""
    while True:
        point = rng.choice((rng.randrange(0x20, 0x3000), rng.randrange(0x3000, 0x10000), rng.randrange(0x10000, 0x1F000),
                            rng.randrange(0x1F000, 0x20000), rng.randrange(0x20000, 0x110000)))
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def some_text(rng, extra):
    kind = rng.randrange(20)
    if kind < 9:
        words = rng.choice(SENTENCES).split(" ")
        first = rng.randrange(len(words))
        return " ".join(words[first:first + rng.randrange(1, 8)])
    if kind < 11:
        sentence = rng.choice(SENTENCES)
        first = rng.randrange(len(sentence))
        return sentence[first:first + rng.randrange(1, 12)]
    if kind == 11:
        return rng.choice(SENTENCES).upper() if rng.random() < 0.5 else rng.choice(SENTENCES).title()
    if kind == 12:
        return rng.choice("aeiouncAZzक한あ☀1 ") + rng.choice(MARKS)
    if kind == 13:
        return rng.choice(CONTROLS)
    if kind == 14:
        return "".join(any_character(rng) for _ in range(rng.randrange(1, 6)))
    if kind == 15 and extra:
        return rng.choice(extra)
    if kind == 16:
        return rng.choice(ODD) * rng.choice((1, 1, 1, 2, 7))
    if kind == 17:
        return str(rng.randrange(10 ** rng.randrange(1, 12)))
    return rng.choice(BLANKS) * rng.randrange(1, 4)


def lines(count, seed, extra=()):
    """`count` lines, the same for the same seed; `extra` are added tokens and the like, to be seen among the rest."""
    rng = random.Random(seed)
    made = ["", " ", *SENTENCES, *extra]
    while len(made) < count:
        line = ""
        for _ in range(rng.choice((1, 1, 2, 3, 5, 8, 13))):
            line += some_text(rng, extra) + rng.choice(("", "", " ", " ", " ", rng.choice(BLANKS)))
        made.append(line.replace("\n", " "))
    return made[:count]

"""Labelled pairs of questions made by rule, English and Chinese, ours to ship and to calibrate on.

Every pair is a frame filled with words of the lists below: frames of one row ask the same
(`same`), the rules below them ask something else. `kind` names the rule.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from tierway.policies.lexicon import entries

SEED = 7


def _phrases(table: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in table.split(";")]


EN_TASKS = _phrases("""
    reset my password; bake sourdough bread; remove a red wine stain; learn the guitar;
    write a cover letter; clean a cast iron pan; grow tomatoes indoors; train a puppy;
    merge two branches in git; back up my phone; cook brown rice; fix a leaking tap;
    improve my handwriting; renew a passport; cancel a subscription; start a podcast;
    change a flat tire; make cold brew coffee; lose belly fat; open a bank account;
    connect a bluetooth headset; export a spreadsheet to pdf; speed up my laptop;
    prune a rose bush; tie a bow tie; find a good dentist; sharpen a kitchen knife;
    buy a used car; delete my browsing history; build a bookshelf
    """)
EN_PLACES = entries("""
    France Germany Japan Brazil Canada Kenya Norway Peru Thailand Egypt Poland Chile Vietnam
    Morocco Finland Ghana Cuba Nepal Iceland Portugal
    """)
EN_TERMS = _phrases("""
    inflation; photosynthesis; a blockchain; machine learning; osmosis; a mortgage; entropy;
    a black hole; recursion; supply chain management; a hedge fund; the greenhouse effect;
    quantum computing; a load balancer; natural selection; gravity; an index fund; a compiler;
    plate tectonics; a vaccine; unit testing; a transistor; dark matter; herd immunity
    """)
EN_THINGS = _phrases("""
    electric car; road bike; espresso machine; standing desk; mirrorless camera; robot vacuum;
    gaming laptop; air purifier; mechanical keyboard; camping tent; smart watch; water filter
    """)
EN_TWINS = _phrases("""
    tcp|udp; viruses|bacteria; stocks|bonds; jam|jelly; python|ruby; rugby|football;
    ethics|morality; alligators|crocodiles; weather|climate; ram|rom; latex|acrylic;
    cello|violin
    """)
EN_SAME = (
    (EN_TASKS, ("How do I {}?", "How can I {}?", "What is the best way to {}?", "how to {}",
                "Could you tell me how to {}?", "What are the steps to {}?")),
    (EN_PLACES, ("What is the capital of {}?", "What's {}'s capital?", "what is the capital of {}",
                 "Tell me the capital of {}.", "Do you know what the capital of {} is?")),
    (EN_PLACES, ("What is the population of {}?", "What's {}'s population?",
                 "Please tell me what the population of {} is.")),
    (EN_TERMS, ("What is {}?", "what is {}", "What exactly is {}?", "Can you tell me what {} is?")),
    (EN_TERMS, ("What does {} mean?", "What is the meaning of {}?", "Define {}.")),
    (EN_THINGS, ("How much does a {} cost?", "What is the cost of a {}?",
                 "What does the price of a {} start at?")),
    (EN_THINGS, ("Which is the best {}?", "What's the top {}?", "what is the best {}")),
)  # fmt: skip
# Frames that ask different things with nearly the same words.
EN_OTHER_FRAMES = (
    (EN_TASKS, ("How do I {}?", "Why should I {}?", "Should I {}?", "How long does it take to {}?",
                "Who can {} for me?", "When should I {}?", "How do I {} without any tools?",
                "What do I need before I {}?", "How do I teach a child to {}?", "How not to {}?")),
    (EN_PLACES, ("What is the capital of {}?", "What was the first capital of {}?",
                 "What is the population of {}?", "What is the population of the capital of {}?",
                 "What is the currency of {}?", "Who is the president of {}?",
                 "What is {} famous for?", "Where is {}?", "When was {} founded?")),
    (EN_TERMS, ("What is {}?", "Who discovered {}?", "What causes {}?", "What is {} used for?",
                "Why is {} important?", "What is an example of {}?", "What is the opposite of {}?",
                "What was {} like in the past?", "What will {} be?", "What is wrong with {}?")),
    (EN_THINGS, ("Which is the best {}?", "Which is the best cheap {}?", "Which is the worst {}?",
                 "Which is the best {} for children?", "Who makes the best {}?",
                 "Where can I buy the best {}?", "What is the best {} case?",
                 "How do I repair a {}?", "How do I sell a {}?")),
)  # fmt: skip
EN_SWAPS = (
    ("number", "How do I save {} dollars in a month?", "200|300;two hundred|250;50|500"),
    ("number", "What can I cook for {} people?", "4|6;four|five;10|12"),
    ("unit", "How do I lose 10 {} safely?", "pounds|kg;kilos|pounds"),
    ("unit", "What is 30 {} in local time?", "minutes|hours;days|weeks"),
    ("date", "What happened in {} 1969?", "July|June;March|May"),
    ("date", "Which shops are open on {}?", "Sunday|Monday;Saturday|Friday"),
    ("date", "What were the best films of {}?", "2014|2015;last year|this year"),
    ("antonym", "How do I turn {} dark mode?", "on|off"),
    ("antonym", "How do I {} two factor login?", "enable|disable;set up|remove"),
    ("antonym", "How can I {} my blood pressure?", "lower|raise;increase|decrease"),
    ("antonym", "Is the museum {} today?", "open|closed"),
    ("antonym", "What are the {} of remote work?", "advantages|disadvantages;pros|cons"),
    ("antonym", "Is it {} to park here?", "legal|illegal"),
    ("negation", "Why {} my printer working?", "is|isn't"),
    ("negation", "What foods should I {} before surgery?", "eat|not eat;eat|avoid"),
    ("entity", "How do I install {} on my laptop?", "Docker|Podman;Firefox|Chrome"),
    ("entity", "Who founded {}?", "Google|Amazon;Sony|Nintendo"),
    ("entity", "Is {} a good place to study?", "Oxford|Cambridge;Boston|Chicago"),
    ("person", "What is {} favourite food?", "your|my;his|her"),
    ("question", "{} was the Eiffel Tower built?", "When|Why;How|Where"),
    ("literal", "What does `{}` do?", "git push|git pull;chmod|chown"),
    ("object", "How do I clean a {} filter?", "pool|coffee;water|furnace"),
)
EN_DIRECTIONS = [
    "How far is it from {} to {}?",
    "How do I fly from {} to {}?",
    "Is {} bigger than {}?",
    "How do I send money from {} to {}?",
    "Did {} beat {} in the final?",
    "Does {} export cars to {}?",
]

# The same content words, told apart by function words alone: what only the cosine can refuse.
EN_FUNCTION = (
    (EN_THINGS, ("What is a {}?", "What do I do with a {}?", "What is in a {}?",
                 "What goes with a {}?", "What are you doing to the {}?", "What has a {}?")),
    (EN_PLACES, ("What is {}?", "What is in {}?", "What is up with {}?", "What do they do in {}?",
                 "What can I get out of {}?", "What about me and {}?")),
    (EN_TERMS, ("What is {}?", "What is in {}?", "What are you and {}?", "What do we do about {}?",
                "What has {}?", "What is it with {}?")),
)  # fmt: skip

ZH_TASKS = entries("""
    重置密码 做红烧肉 去除红酒渍 学吉他 写简历 养多肉植物 训练小狗 备份手机照片 办理护照
    取消自动续费 换轮胎 做手冲咖啡 练好字 开通网银 连接蓝牙耳机 导出表格 清理电脑垃圾
    修剪月季 打领带 磨刀 挑选二手车 删除浏览记录 缓解颈椎疼 提高记忆力
    """)
ZH_PLACES = entries("""
    法国 德国 日本 巴西 加拿大 肯尼亚 挪威 秘鲁 泰国 埃及 波兰 智利 越南 芬兰 古巴
    冰岛
    """)
ZH_TERMS = entries("""
    通货膨胀 光合作用 区块链 机器学习 渗透压 熵 黑洞 递归 供应链 对冲基金 温室效应
    量子计算 负载均衡 自然选择 指数基金 编译器 板块构造 疫苗 单元测试 暗物质
    """)
ZH_THINGS = entries("""
    电动车 公路自行车 咖啡机 升降桌 微单相机 扫地机器人 空气净化器 机械键盘 帐篷 净水器
    """)
ZH_TWINS = _phrases("""
    病毒|细菌; 股票|债券; 果酱|果冻; 橄榄球|足球; 鳄鱼|短吻鳄; 天气|气候; 内存|硬盘;
    大提琴|小提琴; 粳米|籼米
    """)
ZH_SAME = (
    (ZH_TASKS, ("怎么{}？", "如何{}", "怎样{}呢", "请问怎么{}", "怎么才能{}啊？",
                "我想知道如何{}")),
    (ZH_PLACES, ("{}的首都是什么？", "{}首都是什么", "请问{}的首都是什么呢", "{}的首都是哪个")),
    (ZH_TERMS, ("什么是{}？", "{}是什么", "请问{}是什么呢？", "{}是啥")),
    (ZH_TERMS, ("{}是什么意思？", "{}什么意思", "{}的意思是什么")),
    (ZH_THINGS, ("一台{}多少钱？", "一台{}要多少钱啊", "请问一台{}多少钱")),
    (ZH_THINGS, ("哪个牌子的{}最好？", "什么牌子的{}最好", "{}哪个牌子最好")),
)  # fmt: skip
ZH_OTHER_FRAMES = (
    (ZH_TASKS, ("怎么{}？", "为什么要{}？", "要不要{}？", "{}需要多久？",
                "谁能{}？", "什么时候{}？", "怎么教孩子{}？",
                "不{}会怎么样？", "{}", "怎么不花钱{}？", "{}要多少钱？")),
    (ZH_PLACES, ("{}的首都是什么？", "{}的人口是多少？", "{}首都的人口是多少？", "{}的货币是什么？",
                 "{}的总统是谁？", "{}在哪里？", "{}以前的首都是什么？", "{}的首都有什么好玩的？")),
    (ZH_TERMS, ("什么是{}？", "谁发现了{}？", "为什么会有{}？", "{}有什么用？", "{}的反面是什么？",
                "{}有什么坏处？", "{}有什么好处？", "{}怎么计算？", "{}的例子有什么？")),
    (ZH_THINGS, ("哪个牌子的{}最好？", "哪个牌子的{}最便宜？", "哪个牌子的{}最差？", "{}怎么修？",
                 "哪里可以买到{}？", "儿童{}哪个牌子最好？", "哪个牌子的{}配件最好？",
                 "{}怎么卖掉？")),
)  # fmt: skip
ZH_SWAPS = (
    ("number", "怎么一个月存{}元？", "2000|3000;三千|3500;五百|五千"),
    ("number", "{}个人吃什么菜好？", "4|6;四|五;十|12"),
    ("unit", "怎么安全地减10{}？", "斤|公斤"),
    ("unit", "借款{}的利息怎么算？", "10天|10个月;一年|一周"),
    ("date", "{}的天气怎么样？", "今天|明天;周一|周五"),
    ("date", "{}有什么好看的电影？", "2014年|2015年;去年|今年"),
    ("antonym", "怎么{}深色模式？", "打开|关闭;开启|关掉"),
    ("antonym", "怎么{}手机号？", "绑定|解绑"),
    ("antonym", "怎么{}血压？", "降低|升高"),
    ("antonym", "远程办公有什么{}？", "优点|缺点;好处|坏处"),
    ("antonym", "这首诗的{}一句是什么？", "上|下"),
    ("antonym", "怎么{}朋友圈的照片？", "添加|删除"),
    ("negation", "为什么我的打印机{}用？", "能|不能"),
    ("negation", "手术前{}吃什么？", "能|不能;可以|不可以"),
    ("entity", "怎么在电脑上安装{}？", "微信|钉钉;火狐|谷歌浏览器"),
    ("entity", "{}是谁创立的？", "腾讯|百度;索尼|任天堂"),
    ("entity", "去{}读书好吗？", "牛津|剑桥;北京|上海"),
    ("person", "{}最喜欢吃什么？", "你|我;他|她"),
    ("question", "埃菲尔铁塔是{}建的？", "什么时候|为什么;谁|怎么"),
    ("object", "怎么清洗{}的滤芯？", "鱼缸|咖啡机;净水器|空调"),
)
ZH_DIRECTIONS = [
    "从{}到{}有多远？",
    "怎么从{}飞到{}？",
    "{}比{}大吗？",
    "怎么从{}汇款到{}？",
    "{}打败{}了吗？",
    "{}欠{}多少钱？",
]

ZH_FUNCTION = (
    (ZH_PLACES, ("{}是什么？", "{}有什么？", "什么在{}？", "{}和什么？")),
    (ZH_THINGS, ("{}是什么？", "{}有什么？", "什么有{}？", "{}和什么？")),
    (ZH_TERMS, ("{}是什么？", "{}有什么？", "什么在{}？", "什么有{}？")),
)

EN_FORMATS = (
    ("How do I save 20% of my income?", "How do I save 20 percent of my income?"),
    ("How do I start investing with $100?", "How do I start investing with 100 dollars?"),
    ("What can I cook in 10 minutes?", "What can I cook in ten minutes?"),
    ("How far can I run in 2 hours?", "How far can I run in two hours?"),
    ("How can I lose 5kg?", "How can I lose 5 kg?"),
    ("What can I buy for 1,500 euros?", "What can I buy for 1500 euros?"),
)  # fmt: skip
ZH_FORMATS = (
    ("怎么存下工资的20%？", "怎么存下工资的百分之二十？"),
    ("3000元能买什么手机？", "三千元能买什么手机？"),
    ("10分钟能做什么菜？", "十分钟能做什么菜？"),
    ("2个月能学会游泳吗？", "两个月能学会游泳吗？"),
    ("借1万元利息是多少？", "借一万元利息是多少？"),
)


def made_pairs(seed: int = SEED) -> list[dict[str, Any]]:
    """Some thousand lines {a, b, same, source: "made", lang, kind}, the same for a seed."""
    rng = random.Random(seed)
    english = _same("en", EN_SAME, rng) + _different("en", "intent", EN_OTHER_FRAMES, rng)
    chinese = _same("zh", ZH_SAME, rng) + _different("zh", "intent", ZH_OTHER_FRAMES, rng)
    english += _different("en", "function", EN_FUNCTION, rng) + _swapped("en", EN_SWAPS)
    chinese += _different("zh", "function", ZH_FUNCTION, rng) + _swapped("zh", ZH_SWAPS)
    english += _directions("en", EN_DIRECTIONS, EN_PLACES, rng)
    chinese += _directions("zh", ZH_DIRECTIONS, ZH_PLACES, rng)
    english += _twins("en", EN_TWINS, ("What is the difference between {} and {}?",))
    chinese += _twins("zh", ZH_TWINS, ("{}和{}有什么区别？",))
    for language, formats, lines in (("en", EN_FORMATS, english), ("zh", ZH_FORMATS, chinese)):
        lines += [_line(language, "format", True, a, b) for a, b in formats]
    return english + chinese


def _line(language: str, kind: str, same: bool, a: str, b: str) -> dict[str, Any]:
    return {"a": a, "b": b, "same": same, "source": "made", "lang": language, "kind": kind}


Frames = tuple[tuple[list[str], tuple[str, ...]], ...]


def _same(language: str, rows: Frames, rng: random.Random) -> list[dict[str, Any]]:
    """Each word in three pairs of frames; and neighbouring words in one frame, which differ."""
    lines = []
    for words, frames in rows:
        for word in words:
            for first, second in rng.sample(list(itertools.combinations(frames, 2)), 3):
                lines.append(
                    _line(language, "frame", True, first.format(word), second.format(word))
                )
        for first, second in itertools.pairwise(words):
            frame = rng.choice(frames)
            lines.append(
                _line(language, "object", False, frame.format(first), frame.format(second))
            )
    return lines


def _different(language: str, kind: str, rows: Frames, rng: random.Random) -> list[dict[str, Any]]:
    lines = []
    for words, frames in rows:
        pairs = list(itertools.combinations(frames, 2))
        for word in words:
            for first, second in rng.sample(pairs, min(8, len(pairs))):
                lines.append(_line(language, kind, False, first.format(word), second.format(word)))
    return lines


def _swapped(language: str, swaps: tuple[tuple[str, str, str], ...]) -> list[dict[str, Any]]:
    lines = []
    for kind, frame, values in swaps:
        for pair in values.split(";"):
            first, second = pair.split("|")
            lines.append(_line(language, kind, False, frame.format(first), frame.format(second)))
    return lines


def _directions(
    language: str, frames: list[str], places: list[str], rng: random.Random
) -> list[dict[str, Any]]:
    lines = []
    for frame in frames:
        for _ in range(12):
            first, second = rng.sample(places, 2)
            a, b = frame.format(first, second), frame.format(second, first)
            lines.append(_line(language, "direction", False, a, b))
    return lines


def _twins(language: str, twins: list[str], frames: tuple[str, ...]) -> list[dict[str, Any]]:
    """The difference between A and B is that between B and A; between A and C it is not."""
    lines = []
    pairs = [twin.split("|") for twin in twins]
    for frame in frames:
        for (a, b), (c, _) in itertools.pairwise(pairs):
            lines.append(_line(language, "operands", True, frame.format(a, b), frame.format(b, a)))
            lines.append(_line(language, "object", False, frame.format(a, b), frame.format(a, c)))
    return lines

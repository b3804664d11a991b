"""Chinese word lists (simplified): what the equivalence check folds together and keeps apart."""

from __future__ import annotations

import re

from tierway.policies.lexicon import axes, entries

# Axes of polarity, side:side, with the words that stand on each.
_AXES = entries("""
    开启,打开,开通,开机,启用,激活:关闭,关掉,关机,停用,禁用,注销,关了 开:关 上:下
    增加,提高,提升,增大,上涨,升高,涨:减少,降低,下降,减小,下跌,降
    最大,最高,最多,最长,最好,最佳,最快,最早,最贵,最强,最重:最小,最低,最少,最短,最差,最坏,最慢,最晚,最便宜,最弱,最轻
    大:小 多:少 高:低,矮 长:短 快:慢 早:晚,迟 好:坏,差 新:旧 前:后 左:右
    里,内:外 东:西 南:北 男:女 真:假 买:卖 借:还 输:赢 冷:热 进:出 收:发,付
    存:取 去:来,回 胖:瘦 贵:便宜 难:容易,简单 冬:夏 黑:白 生:死 加:减 升:降
    公:母 老:少,年轻 深:浅 宽:窄 软:硬 粗:细 提前:逾期,延期,推迟,延后
    添加,加入,新增:删除,删掉,移除,去掉 安装:卸载,拆 绑定:解绑,解除绑定
    登录,登陆:退出,登出 上传:下载 连接:断开 锁定,上锁:解锁
    允许,同意,接受:禁止,拒绝,反对 优点,好处,优势,利:缺点,坏处,劣势,弊 成功:失败
    开始,开头:结束,结尾,停止 存款,存钱:取款,取钱,贷款 收入:支出 盈利:亏损 转入:转出
    流入:流出 进口:出口 加密:解密 压缩:解压 隐藏:显示 订阅:取消 发送:接收 恢复:取消
    赚:赔,亏 正面:负面,反面 合法:违法,非法 安全:危险 健康:不健康 老师:学生
    父母,家长:孩子 爸爸,父亲:妈妈,母亲 老公,丈夫:老婆,妻子 哥哥,弟弟:姐姐,妹妹
    男朋友,男友:女朋友,女友 爷爷:奶奶 上一:下一 上册:下册 上半:下半
    阳历,公历:阴历,农历 白天:晚上,夜里 早上,早晨:晚上 前面:后面 左边:右边 里面:外面
    喜欢,爱:讨厌,恨 近义词,同义词:反义词 苹果:安卓,华为,小米,三星 微信:支付宝,qq
    花呗:借呗 电脑:手机 中文:英文 英语:日语,韩语,法语,德语,汉语 冻结:解冻 拉黑:取消
    普通:高级 免费:收费,付费 线上,网上:线下 国内:国外 室内:室外 城市:农村 公立:私立
    本科:专科,研究生 一等:二等 横:竖 单:双 奇:偶 干:湿 轻:重 正:反 攻:守
    首付:月供 身份证:银行卡 收货:发货 退款:付款,收款 还款:借款,贷款 还钱:借钱
    转账:收款 充值:提现 开户:销户 上班:下班 上学:放学 上车:下车 起飞:降落 出发:到达
    起床:睡觉 入职:离职 结婚:离婚 出生:死亡 入学:毕业
    """)
AXES = axes(_AXES)
NEGATION = re.compile(r"不|没|無|无|非|未|别|勿|莫|甭|除了|禁止|拒绝|避免|防止")
# A-not-A questions and words in which the negation denies nothing.
NO_NEGATION = re.compile(
    r"(.)不\1|是不是|有没有|能不能|可不可以|会不会|要不要|不错|不过|不管|不同|不仅|不但|不断|"
    r"差不多|对不起|不好意思|"
    r"没事|非常|除非|无论|未来|别人|别的|区别|特别|性别|类别|级别|识别|告别|分别|个别|非洲|"
    r"不锈钢|无线|不动产|了没有?$|没有?$|吗不$|不$"
)

MARK = re.compile(r"〈(\w+)〉")
_SYNONYMS = entries("""
    手机号:手机号码 计算机:电脑 方法:办法 区别:不同之处,不同点,差别,差异 登录:登陆 帐户:账户
    父亲:爸爸,老爸,爹 母亲:妈妈,老妈,娘 妻子:老婆,媳妇 丈夫:老公 减肥:瘦身 买:购买
    用:使用,运用 查:查询,查看,查找 改:修改,更改,变更 关闭:关掉,关了 打开:开启,打開
    照片:相片 电视剧:连续剧 歌:歌曲 能:可以,能够 写:撰写 做:制作
    吃:食用 治:治疗,医治 病:疾病 好处:益处 坏处:害处 应该:应当 帮:帮助 学:学习
    挣钱:赚钱 漂亮:美丽 星期:礼拜 现在:目前,如今 最好:最佳 提升:提高 作者:写的人
    """)
SYNONYMS = tuple(
    sorted(
        ((word, row.split(":")[0]) for row in _SYNONYMS for word in row.split(":")[1].split(",")),
        key=lambda pair: -len(pair[0]),
    )
)
STOP = frozenset("才的了呢啊呀吧哦哈噢嗯是在就个那这之和与及而着地得有都也一")
# Asking why or whether, the question word stands anywhere, unless it belongs to one of these.
REPORTS = re.compile("[说问想觉认]|知道|如果|要是")
# 法国的首都是〈where〉, 法国首都〈where〉: between two words of a noun phrase that is asked for.
OF = re.compile(r"(?<=[\u3400-\u9fff]{2})(?<![打目]) ?的(?=[\u3400-\u9fff]{2})(?![士确])")
ASKED_FOR = re.compile(r"〈(?:what|where|who|howmany|howbig|howtall|howold)〉\W*$|〈what〉意思")
IS = re.compile("是(?= ?[〈\ue000])")
PERSONS = {"我": 1, "咱": 1, "俺": 1, "你": 2, "您": 2, "他": 3, "她": 4, "它": 5}
DIRECTION = re.compile(
    r"到|去|至|比|给|被|把|换成|换|转|向|对|从|往|变|兑|等于|除以|让|叫|追|打|喜欢|爱"
)
# Characters that seldom decide what a question asks for.
LIGHT = frozenset(
    "啊呀呢吗嘛吧哦噢嗯哈么的了着过地得是有会能可以要想请帮给一下个种些点都也就才还又再很太更最真好真"
)
# 红茶和绿茶的区别: a noun that asks by itself.
ASKED_NOUNS = tuple(
    entries("""
    区别 不同 差别 差异 意思 含义 定义 方法 做法 步骤 办法 原因 理由 作用 功效 好处 坏处 优点 缺点
    作者 首都 读音 翻译 用法 例子 历史 特点
    """)
)

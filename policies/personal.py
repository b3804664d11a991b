"""Does the answer depend on who asks: my order, our invoices, 我的余额?

Read by patterns over an English and a Chinese list of things that everybody has an own one of. What
is everybody's own procedure is not meant ("how do I reset my password"), nor what merely belongs to
somebody without a record of it ("why does my dog bark"). A question that is missed shares its
answer within the tenant like any other, so the lists would rather take one too many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tierway.policies.context import SHORT, ends

_THINGS_EN = (
    r"blood (?:type|pressure|test)|time off|paid leave|due date|next (?:shift|class|exam)|"
    r"accounts?|allowance|alarms?|appeal|applications?|appointments?|address|attendance|"
    r"balances?|benefits|bills?|billing|birthday|bonus|bookings?|calendar|cards?|cart|case|"
    r"claims?|commute|contacts?|contracts?|contributions?|coverage|credit|data|deductible|"
    r"deliver(?:y|ies)|deposits?|diagnosis|documents?|dosage|earnings|emails?|enrol?lment|"
    r"expenses|files?|flights?|funds|grades?|history|holdings|inbox|insurance|invoices?|ip|"
    r"itinerary|lease|licen[cs]e|limit|loans?|location|log-?in|luggage|manager|medications?|"
    r"meetings?|membership|messages?|mortgage|name|notes?|notifications?|orders?|overdraft|"
    r"packages?|parcels?|passport|passwords?|pay|paychecks?|payments?|payroll|payslip|pension|"
    r"permissions?|phone|pin|plan|points?|policy|portfolio|prescriptions?|profile|purchases?|"
    r"quota|records?|refill|refunds?|registration|reminders?|rent|reservations?|results?|"
    r"returns?|rewards?|salar(?:y|ies)|savings|schedule|score|seat|shares|shifts?|shipments?|"
    r"shipping|spending|statements?|subscriptions?|supervisor|taxes|tax|team|tickets?|"
    r"timesheet|to-?do|top-?up|trades?|transactions?|transfers?|trips?|usage|username|"
    r"vacation|visa|wages?|wallet|warranty|withdrawals?"
)
_PERSONAL_EN = re.compile(
    rf"\b(?:my|mine|our) (?:[\w'-]+ ){{0,2}}?(?:{_THINGS_EN})\b|"
    r"\b(?:who am i|where am i|am i (?:eligible|registered|allowed|logged|insured|covered|"
    r"approved|enrol?led|subscribed|overdrawn|owed|still)|do i (?:have (?:any|enough|left|"
    r"still|to pay)|owe|qualify|still)|(?:much|many) (?:[\w-]+ ){0,3}"
    r"(?:did i|have i|am i|was i|do i (?:have|owe|earn|get|pay))|"
    r"what(?:'s| is) left on my|when (?:do|will|did) i (?:get|receive)|"
    r"(?:did|have) i|i (?:still )?owe|i(?:'ve| have)? (?:ordered|booked|bought|paid)|"
    r"(?:was|am) i (?:charged|billed|paid)|refund me|remind me|near me|nearest to me|"
    r"what did my [\w-]+ (?:prescribe|order|book|say|send|pay)|"
    r"around here|in my (?:area|city|town|neighbou?rhood|street))\b",
    re.IGNORECASE,
)
# A procedure is the same for everybody. What is owed, held or due stays personal even there.
_PROCEDURE_EN = re.compile(
    r"\b(?:how (?:do|can|could|should|would|might) (?:i|we|you|one)|how to|"
    r"(?:ways?|steps?) to|where (?:do|can) (?:i|we)) (?:\w+ )?"
    r"(?:activate|add|back up|cancel|change|clean|clear|close|configure|create|customi[sz]e|"
    r"deactivate|delete|disable|edit|enable|encrypt|export|fix|format|hide|improve|import|"
    r"link|lock|manage|merge|move|open|organi[sz]e|optimi[sz]e|print|protect|recover|register|"
    r"remove|rename|renew|replace|reset|restore|secure|set|set up|share|sync|turn (?:on|off)|"
    r"unlink|unlock|update|upgrade|verify|write) (?:my|our) (?!(?:[\w'-]+ ){0,2}?(?:balance|bill|"
    r"prescription|salary|payment|transaction|transfer|refund|tax|diagnosis|medication|results?)"
    r"\b)[^.?!]*|"
    r"\bhow (?:do|can|could|should|would) (?:i|we|you) (?:[\w-]+ ){1,4}(?:my|our) (?:data|"
    r"documents?|files?|history|phone|team|notes?|plan|portfolio|results?|schedule|score)\b",
    re.IGNORECASE,
)
_NOT_PERSONAL_EN = re.compile(
    r"\b(?:my fair lady|my name is \w+|on my own|in our (?:solar system|society|world|history)|"
    r"our (?:planet|galaxy|world|sun|history|society)|did i mention|have i mentioned)\b",
    re.IGNORECASE,
)

_THINGS_ZH = (
    "订单|账户|账号|帐户|帐号|余额|额度|账单|帐单|快递|包裹|工资|薪水|薪资|奖金|密码|口令|"
    "预订|预定|预约|航班|机票|车票|火车票|门票|票|会员|套餐|流量|话费|积分|银行卡|信用卡|卡|"
    "贷款|借款|欠款|还款|花呗|借呗|身份证|驾照|护照|签证|地址|住址|名字|姓名|生日|成绩|分数|日程|"
    "日历|邮件|邮箱|消息|短信|文件|文档|合同|保单|保险|理赔|退款|支付|付款|转账|交易|流水|"
    "处方|药单|用药|病历|体检|化验|检查结果|检验|报告|血型|诊断|挂号|医保|社保|公积金|个税|"
    "税|年假|假期|假条|考勤|排班|班次|课表|申请|审批|报销|发票|物流|配送|收货|购物车|收藏|"
    "电费|水费|燃气费|房租|租金|存款|基金|持仓|股份|收益|限额|权限|手机号|电话|位置|档案|"
    "进度|待办|提醒|闹钟|会议|行程|座位|学分|学籍|学号|工号|上司|经理|主管"
)
_PERSONAL_ZH = re.compile(
    r"(?:我们?|本人|咱们?|俺|俺们)(?:的|自己|家|公司|团队|部门|学校|这|上|下|本|那|个|月|年|"
    rf"周|次|季度|星期|孩子|儿子|女儿|老公|老婆|爸|妈|支付宝|微信|淘宝|银行)*(?:{_THINGS_ZH})|"
    r"我(?:是谁|在哪|叫什么|还?欠|还?剩|总共|一共|上?个?月?花了|花了多少|缴了|交了|买的|订的|"
    rf"下的单|帮我(?:查|看|取消|改|退).{{0,4}}(?:{_THINGS_ZH})|"
    r"还有(?:几|多少)|能领|能贷|有没有逾期|逾期)|(?:我|本人)(?:附近|这边)|附近",
)
_PROCEDURE_ZH = re.compile(
    r"(?:怎么|怎样|如何|怎么样)(?:才能|可以|能)?(?:重置|修改|更改|改|注销|找回|取消|设置|绑定|"
    r"解绑|删除|更新|激活|关闭|保护|备份|导出|清理|整理|隐藏|加密)"
    r"(?:我们?的?)(?!余额|账单|工资|处方|还款|转账|退款)[^。？！，]*|"
    r"(?:我们?的?)(?:密码|账号|帐号|账户|邮箱|名字|头像|手机号|地址)(?:忘了|丢了)?(?:怎么|如何)"
    r"(?:重置|修改|更改|改|注销|找回|取消|设置|绑定|解绑|删除|更新)"
)
_NOT_PERSONAL_ZH = re.compile(r"我国|我党|我军|自我|《[^》]*》|“[^”]*”|我的世界")
_WHOLE_WORD = r"(?<![A-Za-z0-9_]){}(?![A-Za-z0-9_])"


@dataclass(frozen=True, slots=True)
class Personal:
    """Says of a text whether its answer is its asker's own. `words` are more words that make it
    so wherever they stand, in any case: whole words, in Chinese any piece of text."""

    words: tuple[str, ...] = ()

    def __call__(self, text: str) -> bool:
        asked = ends(text) if len(text) > SHORT else text
        if _sounds_personal(asked):
            return True
        return self.words != () and _has_word(asked, self.words)


@lru_cache(maxsize=4096)
def _sounds_personal(text: str) -> bool:
    # Asked of every request, and many requests are the same.
    if "我" in text or "本人" in text or "咱" in text or "俺" in text or "附近" in text:
        rest = _PROCEDURE_ZH.sub(" ", _NOT_PERSONAL_ZH.sub(" ", text))
        if _PERSONAL_ZH.search(rest):
            return True
    rest = _PROCEDURE_EN.sub(" ", _NOT_PERSONAL_EN.sub(" ", text))
    return _PERSONAL_EN.search(rest) is not None


def _has_word(text: str, words: tuple[str, ...]) -> bool:
    return _word_pattern(words).search(text) is not None


@lru_cache(maxsize=16)
def _word_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_WHOLE_WORD.format(re.escape(word)) for word in words), re.I)

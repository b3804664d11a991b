"""Questions by what they rest on, labelled by hand before any rule was fitted to them.

Volatile: the answer changes within days. Stable: it does not, whatever its words remind of.
"""

from __future__ import annotations

from collections.abc import Callable

Test = Callable[[str], bool]


def taken(test: Test, questions: tuple[str, ...]) -> list[str]:
    return [question for question in questions if test(question)]


def missed(test: Test, questions: tuple[str, ...]) -> list[str]:
    return [question for question in questions if not test(question)]


def precision_and_recall(
    test: Test, of_the_kind: tuple[str, ...], others: tuple[str, ...]
) -> tuple[float, float]:
    right, wrong = len(taken(test, of_the_kind)), len(taken(test, others))
    return right / max(1, right + wrong), right / len(of_the_kind)


def lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines() if line.strip())


VOLATILE_EN = lines("""
    What's the weather like in Boston right now?
    Will it rain in Seattle tomorrow?
    Do I need an umbrella in London today?
    How hot is it in Phoenix at the moment?
    What is the price of bitcoin?
    How much is gold per ounce?
    What's Tesla stock trading at?
    What's the USD to EUR exchange rate?
    How much does a gallon of gas cost in Texas these days?
    Did the Lakers win last night?
    What's the score of the Arsenal game?
    Who is leading the Premier League?
    Who won the election yesterday?
    What time is it in Tokyo?
    What's today's date?
    What day of the week is it?
    What are the latest headlines?
    Any news about the strike?
    Is Gmail down?
    Is the M25 closed?
    Is the pharmacy on Main Street open now?
    What's trending on Twitter?
    What movies are playing this weekend?
    What's the current version of Node.js?
    What is the newest iPhone model?
    Who is the current CEO of Intel?
    Who is the president of Brazil?
    Who is the prime minister of the UK now?
    What's the current inflation rate in Germany?
    What are mortgage rates today?
    How many days until Easter?
    When is the next full moon?
    When does the next train to Oxford leave?
    Is there a delay on the Victoria line?
    Is flight BA117 on time?
    What's on TV tonight?
    What are the upcoming holidays?
    How is the Nasdaq doing?
    What happened in parliament this morning?
    Are PS5 consoles in stock at Target?
    What's the pollen count in Denver?
    What's the air quality in Delhi?
    How old is Taylor Swift?
    What is the net worth of Jeff Bezos?
    What is the traffic like on the I-95?
    Which Python release came out most recently?
    How much is a first class stamp?
    What is the population of India currently?
    Who currently holds the marathon world record?
    Has the Fed raised rates this month?
""")

STABLE_EN = lines("""
    What is the price elasticity of demand?
    How does a current divider work?
    What does now() return in SQL?
    What is alternating current?
    How do I parse today's date in Python?
    How do I get the current directory in bash?
    What is the current ratio in accounting?
    How do price ceilings cause shortages?
    What causes weather fronts?
    How do weather satellites work?
    How do I score a penalty kick?
    What is a credit score made of?
    How is the F1 score calculated?
    What is a stock split?
    How do I make chicken stock?
    What does it mean to share a file by link?
    How do I read a news article critically?
    What is the difference between weather and climate?
    How do I make git show the latest commit?
    What does docker's latest tag mean?
    Who was the first president of the United States?
    Who won the world cup in 1998?
    What is the role of a prime minister?
    What happened on 9 November 1989?
    How does live streaming work?
    What is a time series forecast?
    How do I forecast demand with ARIMA?
    What is traffic shaping in networking?
    How do I open a closed file descriptor in Python?
    Is Pluto a planet?
    Is Python case sensitive?
    Are tomatoes available as seeds?
    How do I set the system time on Linux?
    What is the time complexity of quicksort?
    What does "carpe diem" mean in today's English?
    What's the temperature at which water boils?
    How do I convert a string to a date in Java?
    How do you price an option with Black-Scholes?
    What is stock photography?
    How do I write a current event summary?
    What is a live oak?
    How is a newspaper printed?
    How do I add a weather widget in HTML?
    What is market capitalisation?
    What does the head of a linked list point to?
    Why did the king of England sign the Magna Carta?
    How do I sort by the most recent date in SQL?
    What is population growth?
    What was the score of the 1966 world cup final?
    Why do stars twinkle at night?
    How does the stock market work?
    What is the difference between price and cost?
    How long do I have to go to school to be a doctor?
    How do I queue songs on a playlist?
    What is a flight recorder?
    Explain the past and present tense.
    Who wrote The Merchant of Venice?
    How do I undo the last commit?
    What does open source mean?
    Who invented the exchange rate mechanism?
""")

VOLATILE_ZH = lines("""
    今天北京天气怎么样
    明天上海会下雨吗
    现在几点了
    今天星期几
    今天是几号
    外面冷不冷
    现在外面多少度
    比特币价格是多少
    今天金价多少一克
    茅台股价多少
    人民币对美元汇率
    92号汽油多少钱一升
    昨晚湖人赢了吗
    国足比分多少
    英超积分榜谁第一
    最新的新闻有哪些
    现在谁是美国总统
    法国总统是谁
    英国首相叫什么名字
    苹果公司的CEO现在是谁
    最新款的华为手机是哪款
    目前最新的Python版本是多少
    当前的房贷利率是多少
    离国庆节还有几天
    距离高考还有多久
    下一班去杭州的高铁几点
    京沪高速堵车吗
    微信是不是崩了
    G15现在路况如何
    这周末有什么电影上映
    今晚电视上有什么节目
    最近有什么好看的电视剧
    微博热搜有哪些
    今年春节是哪一天
    上证指数多少点了
    A股今天行情怎么样
    北京空气质量怎么样
    PS5现在有货吗
    海底捞现在排队要多久
    附近的药店还开门吗
    油价又涨了吗
    猪肉多少钱一斤
    中国现在有多少人口
    马斯克身价多少
    航班CA1301晚点了吗
    本周的彩票开奖号码
    目前油价是多少
    特斯拉最近的销量如何
    周杰伦今年多大了
    美联储这个月加息了吗
""")

STABLE_ZH = lines("""
    天气预报是怎么做的
    价格弹性是什么意思
    什么是交流电
    电流表怎么用
    什么是股票
    股票分红是什么意思
    汇率是怎么形成的
    价格歧视是什么
    怎么用Python获取今天的日期
    SQL里now()函数返回什么
    linux怎么查看当前目录
    如何获取当前时间戳
    git怎么查看最新的提交
    docker的latest标签是什么意思
    新闻稿怎么写
    新闻联播的主题曲叫什么
    什么是气温
    气温和体温有什么区别
    天气和气候有什么区别
    美国第一任总统是谁
    1998年世界杯冠军是谁
    总统制和议会制有什么区别
    首相和总统有什么区别
    秦始皇是谁
    房价收入比怎么算
    利率和汇率有什么关系
    信用评分怎么计算
    F1比分是怎么定义的
    实时操作系统是什么
    什么是即时编译
    现在分词怎么用
    现在完成时的用法
    英语里的现在进行时怎么构成
    活在当下是什么意思
    "今天"用英语怎么说
    明天用日语怎么说
    昨天的过去式是什么
    几点开始叫深夜
    为什么会下雨
    为什么冬天会下雪
    雪是怎么形成的
    怎么做鸡汤
    水的沸点是多少度
    三角形内角和是多少度
    光速是多少
    一公里等于多少米
    地球离太阳有多远
    红楼梦的作者是谁
    什么是人口普查
    行情一词是什么意思
    股份有限公司怎么注册
    什么是市盈率
    排行榜的设计用什么数据结构
    怎么给商品定价
    价值和价格的关系
    怎么学好英语
    晚安用法语怎么说
    刚体是什么
    最近公共祖先怎么求
    最近邻算法是什么
""")

PERSONAL_EN = lines("""
    What is my account balance?
    Where is my order?
    When is my next appointment?
    Can you show my latest invoice?
    How much do I owe on my bill?
    What's my salary this year?
    Refill my prescription
    I forgot my password, what was it?
    What is on our team's calendar?
    Is my passport still valid?
    Has my refund been processed?
    What are my lab results?
    Summarise my emails from Anna.
    What did I ask you about before?
    Who am I?
    How many vacation days do I have left?
    My medication list, please
    What's the status of my application?
    Cancel my subscription
    What's the due date on my credit card?
    List my upcoming reservations
    What's my blood type?
    How much did I spend on groceries?
    Change my shipping address to 5 Elm Street
    What is my IP address?
    What is my manager's name?
""")

IMPERSONAL_EN = lines("""
    How do I boil an egg?
    What is the capital of France?
    How do I reset a password in Django?
    What is a bank account?
    How can I sort a list in Python?
    Why is my sourdough so dense?
    How do I clean my oven?
    How do I centre my div in CSS?
    What does the word balance mean?
    Who wrote My Fair Lady?
    What is an appointment letter?
    How do I become a pilot?
    How long should I boil my eggs?
    Explain order of operations.
    What does "my bad" mean?
    How do I teach my dog to sit?
    Why does my computer get hot?
    How do I get rid of my headache?
    Do I have to peel carrots?
    What is a prescription?
    How do I write a salary negotiation letter?
    What is the plot of My Neighbor Totoro?
""")

PERSONAL_ZH = lines("""
    我的余额是多少
    我的订单到哪了
    我的快递什么时候到
    查一下我的账单
    我这个月工资多少
    我下次预约是什么时候
    我的处方还能续吗
    我的密码是什么
    我们团队的日程有哪些
    我的体检结果怎么样
    我欠多少钱
    我的花呗额度是多少
    帮我看看我的邮件
    我还有几天年假
    我是谁
    我叫什么名字
    我的积分什么时候过期
    本人社保缴了多少个月
    我买的票是几点的
    我的申请通过了吗
    我的病历在哪里看
    我上个月花了多少钱
    我家的电费是多少
    俺的账号被封了吗
    我的银行卡限额是多少
    咱们公司的合同到期了吗
""")

IMPERSONAL_ZH = lines("""
    怎么煮鸡蛋
    法国的首都是哪里
    怎么查询订单
    账户是什么意思
    我想学Python怎么入门
    我的狗不吃饭怎么办
    我的电脑很卡怎么办
    密码学是什么
    什么是余额宝
    处方药和非处方药的区别
    工资条怎么做
    预约用英语怎么说
    我国的首都是哪里
    我国有多少个省
    《我的前半生》的作者是谁
    我应该怎么减肥
    我可以用微波炉热牛奶吗
    自我介绍怎么写
    账单的英文
    我要怎么写简历
    保险有哪些种类
    订单管理系统怎么设计
""")

LEANING_EN = lines("""
    and the second one?
    why?
    translate it
    What about Berlin?
    how old is he
    continue
    go on
    tell me more
    And its population?
    explain that again
    can you make it shorter?
    what do you mean?
    give me another example
    the first one, please
    yes
    No, the other one
    same for Spain
    How so?
    rewrite this in French
    could you elaborate?
    Are you sure?
    What else?
    which of these is cheaper?
    do they ship to Canada?
    Then what happens?
    summarize the above
""")

STANDING_EN = lines("""
    What is the capital of France?
    Is there a bridge over the Rhine in Basel?
    Is it safe to eat raw eggs?
    What time is it in Tokyo?
    How long does it take to boil an egg?
    How do I tell someone that I am leaving?
    Is it true that the earth is round?
    What does it mean to be an atheist?
    How many people are there in Spain?
    Why do cats purr?
    What is the meaning of life?
    Is it possible to learn Chinese in a year?
    How is cheese made?
    Is it legal to park on a sidewalk in Ohio?
    Who said that the only thing we have to fear is fear itself?
    Which fruit has more sugar than a mango?
    How did the Romans build their roads?
    Why do cats lick themselves?
    How do birds find their way home?
    What should a woman eat when she is pregnant?
    If a tree falls, does it make a sound?
""")

LEANING_ZH = lines("""
    它呢？
    那第二个呢
    为什么呢
    继续
    再来一个
    翻译成英文
    它多少钱？
    这个怎么用啊朋友
    那上海呢
    为什么
    然后呢
    说详细点
    他是哪一年出生的
    换一个说法
    上面那段再解释一下
    还有别的吗
    你确定吗
    第一个是什么意思
    前者和后者哪个便宜
    举个例子
    那么其中最大的是哪个
    同样的问题用法语回答
""")

STANDING_ZH = lines("""
    法国的首都是哪里？
    怎么煮鸡蛋才不会裂开
    什么是光合作用
    水的沸点是多少度
    吉他的入门教程有哪些
    苹果手机怎么截图
    为什么天空是蓝色的
    光的速度是多少
    李白和其他诗人的关系
    红楼梦的作者是谁
    上海到北京坐高铁多久
    猫为什么会打呼噜
    怎么学好英语
    长城有多长
    如何尊重他人的隐私
""")

# Written after the rules were fitted to the lists above, and never fitted to: what to expect of
# questions that nobody has seen.

UNSEEN_VOLATILE_EN = lines("""
    Did the Yankees win?
    Is it going to snow in Boston this weekend?
    how's the market doing
    what is the price of crude oil
    Who's the mayor of New York City?
    Is the subway running?
    Are the banks open on Monday?
    what are people saying about the new iPhone
    current mortgage rates
    What time does the game start?
    when does daylight saving time end this year
    what's new in Python
    latest news on the earthquake
    how much is a Tesla Model 3
    how many subscribers does MrBeast have
    What is the unemployment rate in Spain?
    who is the richest person in the world
    is Amazon down
    when is the next election
    how far along is the Mars mission
    what's the top song on Spotify
    how much is 100 dollars in euros
    is there a sale at IKEA
    Who is the UN secretary general?
    temperature in Dubai
""")

UNSEEN_STABLE_EN = lines("""
    How does inflation work?
    What is the purpose of a price tag?
    How do I cook rice?
    Who was the first man on the moon?
    What is a weather balloon used for?
    How to find the current user in Django?
    What is the meaning of live and let live?
    When was the Eiffel Tower built?
    What is the difference between now and then?
    How do I create a news feed in React?
    What does a stock broker do?
    How do temperature sensors work?
    Is the earth flat?
    What is the most populous planet in Star Wars?
    Why do leaves change colour?
    What are the rules of cricket?
    Explain quantum entanglement.
    What is traffic engineering?
    What's a good recipe for bread?
    How many bones are in the human body?
    Give me an example of a current liability.
    Which planet is closest to the sun?
    What was the price of bread in 1930?
    Is it safe to eat raw fish?
    What does the CEO of a company do?
""")

UNSEEN_VOLATILE_ZH = lines("""
    今天有什么新闻
    明天要带伞吗
    深圳天气预报
    现在的美国总统叫什么
    上证指数
    昨天的球赛比分
    最新款iPad多少钱
    日元汇率
    今年双十一是几号
    目前国内油价
    本周上映的电影
    网易云崩了吗
    广州现在堵车吗
    英伟达股价
    现在是北京时间几点
    湖人今天赢了没有
    附近有什么好吃的
    下一趟地铁几点
    猪肉价格
    房贷利率是多少
    这个月黄金走势
    法国现任总统
    腾讯市值多少
    今晚有球赛吗
    考研还有多少天
""")

UNSEEN_STABLE_ZH = lines("""
    怎么做红烧肉
    什么是通货膨胀
    天气热为什么会中暑
    如何写新闻报道
    价格战是什么意思
    第一个登上月球的人是谁
    股票和债券的区别
    怎么在Java中获取当前日期
    现代汉语的特点
    今生今世是什么意思
    最近发展区理论是谁提出的
    总统和国王的区别
    地球有多大
    汇率对出口的影响
    北宋的首都在哪里
    温度计的原理
    怎么预防感冒
    明清时期的科举制度
    当代艺术是什么
    交通信号灯的含义
    时间复杂度是什么
    实时渲染的原理
    为什么会有四季
    牛顿第二定律
    莎士比亚写了哪些戏剧
""")

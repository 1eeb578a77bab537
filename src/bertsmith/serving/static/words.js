// What the page says, in English and Chinese; and examples to try.

const en = {
  skip: "Skip to the form", language: "Language", theme: "Colours", themeAuto: "Auto", themeLight: "Light", themeDark: "Dark",
  model: "Model", notLoaded: "not loaded yet", loading: "Loading the model …", noTask: "pre-trained", parameters: "{n} parameters", millions: "{n} M parameters",
  maxLength: "up to {n} tokens", labels: "labels",
  keyNeeded: "This server needs an API key", keySend: "Use the key",
  footer: "Answers come from this server only. For programs:",
  run: "Run", stop: "Stop", example: "Example", runHint: "Ctrl + Enter runs it", working: "Computing …",
  truncate: "Longer texts", refuse: "refuse", right: "keep the beginning", left: "keep the end",
  predict: "Classify", regress: "Score", tag: "Find entities", answer: "Answer", choose: "Choose", similar: "Compare", fill: "Fill masks",
  similarity: "Similarity", nearest: "Nearest", generate: "Generate", tokenize: "Tokens",
  text: "Text", textB: "Second text (optional)", textBNeeded: "Second text", question: "Question", questionOptional: "Question (optional)",
  context: "Context", options: "Options, one per line", texts: "Texts, one per line", query: "Query", documents: "Documents, one per line",
  prompt: "Beginning of the text", source: "Source text", words: "Show which words matter", addMask: "Insert {mask}",
  kind: "Decoding", greedy: "most probable token", sample: "random sample", newTokens: "New tokens at most", temperature: "Temperature",
  topK: "Candidates", chooseToken: "Put “{token}” in place of mask {n}", mask: "Mask {n}",
  noEntities: "No entities found.", noLabels: "No label reaches its threshold.", noAnswer: "The model finds no answer in the context.",
  score: "Score: {n}", otherAnswers: "Other answers", nothing: "Nothing was generated.",
  raisesLabel: "raises the score of {label}", raises: "raises the score", lowers: "lowers it",
  strongest: "Strongest words", method: "Each word is left out once; its attribution is how much the score drops without it.",
  byVectors: "Ranked by cosine similarity of embeddings.", byCross: "Ranked by a cross-encoder, which reads the query with each document.",
  tokens: "{n} tokens", needTwo: "Give at least two texts, one per line.", needText: "Type a text first.",
  needMask: "Put {mask} where a word is missing.", needOptions: "Give at least two options, one per line.",
  offline: "The server does not answer. Is it still running?",
  error400: "The request cannot be answered", error401: "The API key is missing or wrong", error404: "There is no such model",
  error413: "The text is too long", error429: "Too many requests", error5: "The server has a problem",
};

const zh = {
  skip: "跳到表单", language: "语言", theme: "配色", themeAuto: "跟随系统", themeLight: "浅色", themeDark: "深色",
  model: "模型", notLoaded: "尚未加载", loading: "正在加载模型……", noTask: "预训练模型", parameters: "{n} 个参数", millions: "{n} 百万参数",
  maxLength: "最多 {n} 个词元", labels: "标签",
  keyNeeded: "此服务器需要 API 密钥", keySend: "使用密钥",
  footer: "所有结果都由本服务器计算。供程序使用：",
  run: "运行", stop: "停止", example: "示例", runHint: "按 Ctrl + Enter 运行", working: "正在计算……",
  truncate: "文本超长时", refuse: "报错", right: "保留开头", left: "保留结尾",
  predict: "分类", regress: "打分", tag: "实体识别", answer: "问答", choose: "选择", similar: "比较", fill: "填空",
  similarity: "相似度", nearest: "检索", generate: "生成", tokenize: "词元",
  text: "文本", textB: "第二段文本（可选）", textBNeeded: "第二段文本", question: "问题", questionOptional: "问题（可选）",
  context: "上下文", options: "选项，每行一个", texts: "文本，每行一条", query: "查询", documents: "文档，每行一篇",
  prompt: "开头", source: "源文本", words: "显示哪些词起作用", addMask: "插入 {mask}",
  kind: "解码方式", greedy: "取概率最高的词元", sample: "随机采样", newTokens: "最多生成词元数", temperature: "温度",
  topK: "候选数", chooseToken: "把“{token}”填入第 {n} 个空", mask: "第 {n} 个空",
  noEntities: "没有找到实体。", noLabels: "没有标签达到阈值。", noAnswer: "模型在上下文中找不到答案。",
  score: "得分：{n}", otherAnswers: "其他答案", nothing: "没有生成任何内容。",
  raisesLabel: "提高“{label}”的得分", raises: "提高得分", lowers: "降低得分",
  strongest: "影响最大的词", method: "每次去掉一个词，得分下降多少，就是这个词的贡献。",
  byVectors: "按句向量的余弦相似度排序。", byCross: "由交叉编码器排序：模型同时阅读查询和每篇文档。",
  tokens: "{n} 个词元", needTwo: "请至少输入两条文本，每行一条。", needText: "请先输入文本。",
  needMask: "请在缺词的位置写上 {mask}。", needOptions: "请至少输入两个选项，每行一个。",
  offline: "服务器没有响应，它还在运行吗？",
  error400: "无法处理这个请求", error401: "API 密钥缺失或错误", error404: "没有这个模型",
  error413: "文本太长", error429: "请求太多，请稍后再试", error5: "服务器出错",
};

const examples = {
  en: {
    text: "A warm and funny film, although the ending is a little slow.",
    tag: "Ada Lovelace wrote to Charles Babbage from London in 1843.", pairB: "The movie is amusing and kind.",
    question: "Where was the library built?",
    context: "The old library was built in Edinburgh in 1890. It burned down twice, and was rebuilt by the city each time.",
    chooseContext: "It rained all night.", chooseQuestion: "What about the street?", options: "It is wet.\nIt is dry.",
    fill: "He opened the {mask} and walked into the {mask}.",
    texts: "The cat sleeps on the sofa.\nA kitten is napping on the couch.\nStocks fell sharply today.\nThe market lost five percent.",
    query: "an animal at rest", prompt: "Once upon a time", source: "the way of the king",
  },
  zh: {
    text: "这部电影温暖又有趣，只是结尾有点拖沓。", tag: "鲁迅一九一八年在北京发表了《狂人日记》。", pairB: "影片很好笑，也很感人。",
    question: "图书馆建在哪里？", context: "这座老图书馆一八九〇年建于南京，两次毁于火灾，每次都由市政府重建。",
    chooseContext: "昨晚下了一夜的雨。", chooseQuestion: "街道怎么样？", options: "是湿的。\n是干的。",
    fill: "他打开{mask}，走了进去。", texts: "小猫在沙发上睡觉。\n猫咪正在打盹。\n今天股市大跌。\n市场下跌了百分之五。",
    query: "休息的动物", prompt: "从前有一座山", source: "春风又绿江南岸",
  },
};

const tables = { en, zh };
let language = "en";

export function setLanguage(name) {
  language = name in tables ? name : "en";
  return language;
}

export function say(name, values = {}) {
  return tables[language][name].replace(/\{(\w+)\}/g, (whole, key) => values[key] ?? whole);
}

export const exampleOf = (name, values = {}) => examples[language][name].replace(/\{(\w+)\}/g, (whole, key) => values[key] ?? whole);

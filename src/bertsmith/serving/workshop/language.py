"""The words of the workshop's pages in Chinese, by their English text."""

CHINESE = {
    "Workshop": "工作台", "Runs": "训练", "Corpora": "语料库", "Races": "对比赛", "Compressions": "压缩", "Compare": "比较",
    "Compare the chosen runs": "比较所选训练", "run": "训练", "kind": "类型", "state": "状态", "step": "步", "loss": "损失",
    "changed": "更新时间", "running": "进行中", "finished": "已完成", "stopped": "已停止", "Nothing here yet.": "这里还没有内容。",
    "Runs, corpora, races and compressions below this folder appear here.": "此文件夹下的训练、语料库、对比赛与压缩结果会显示在这里。",
    "Loss (nats)": "损失（奈特）", "training": "训练集", "validation": "验证集", "unigram baseline": "一元词频基线",
    "one token masked at a time": "每次掩盖一个词元", "Accuracy": "准确率", "accuracy": "准确率", "Learning rate": "学习率",
    "Gradient norm": "梯度范数", "tokens": "词元", "tokens per second": "词元/秒", "memory": "内存", "time left": "剩余时间",
    "done": "完成", "of": "共", "updates skipped": "次更新被跳过", "below the unigram baseline of": "低于一元词频基线",
    "above the unigram baseline of": "高于一元词频基线", "nats per token": "奈特/词元", "elapsed": "已用时间",
    "largest so far": "迄今最大值", "of the last step": "最近一步", "Curves": "曲线", "Samples of the next batch": "下一个批次的样本",
    "Samples of batch": "批次样本", "Batches": "批次", "All samples of this batch": "此批次的全部样本", "Recipe": "配方",
    "sample": "样本", "samples": "样本", "to predict": "个待预测", "B follows A": "B 接在 A 之后", "B is random": "B 为随机片段",
    "A and B are in order": "A、B 顺序正确", "A and B are swapped": "A、B 顺序互换", "masked": "掩码", "random": "随机替换",
    "unchanged": "保持不变", "replaced by [MASK]; the original token is below": "替换为 [MASK]，原词元在下方",
    "replaced by a random token; the original token is below": "替换为随机词元，原词元在下方",
    "not replaced, but predicted like the others": "未替换，但同样需要预测", "batch": "批次", "show": "显示", "previous": "上一页",
    "next": "下一页", "Exactly as the run draws them: a function of the corpus, the seed and the number of the batch.":
    "与训练时完全一致：只取决于语料、随机种子与批次编号。", "read by step": "所属步数", "Training loss by step (nats)": "训练损失（按步）",
    "Training loss by tokens (nats)": "训练损失（按词元）", "Validation loss by step (nats)": "验证损失（按步）",
    "parameters": "参数量", "Settings that differ": "不同的设置", "setting": "设置", "last training loss": "最近训练损失",
    "last validation loss": "最近验证损失", "Choose at least one run.": "请至少选择一个训练。", "documents": "文档",
    "sentences": "句子", "unigram entropy": "一元熵", "vocabulary": "词表", "Documents": "文档", "document": "文档", "text": "文本",
    "Fine-tuned": "微调", "Frozen encoder": "冻结编码器", "average score by number of parameters": "平均分与参数量",
    "latency of one text": "单条文本延迟", "size": "大小", "Scores": "分数", "Front": "前沿", "artifact": "产物", "score": "分数",
    "kept": "保留", "chosen": "选中", "jobs are not finished": "个任务尚未完成", "failed": "失败", "member": "成员",
    "The server does not answer; trying again.": "服务器无响应，正在重试。", "updated": "更新于", "yes": "是", "no": "否",
    "nats": "奈特", "each": "每篇", "distinct tokens": "个不同词元", "Each token with its id.": "每个词元及其编号。",
    "result": "结果", "No samples are shown": "未显示样本", "Read-only: nothing here changes a file.": "只读：不会修改任何文件。",
    "latency p50 ms": "延迟 p50 毫秒", "texts per second": "文本/秒", "gate": "门槛", "stage": "阶段", "median": "中位数",
}  # fmt: skip
LANGUAGES = {"en": "English", "zh": "中文"}


def choose_language(wanted: str | None, cookie: str | None, accepted: str) -> str:
    """The language asked for, else that of the cookie, else the first of the browser's that the pages have."""
    for name in (wanted, cookie):
        if name in LANGUAGES:
            return str(name)
    tags = (part.partition(";")[0].strip().lower()[:2] for part in accepted.split(","))
    return next((tag for tag in tags if tag in LANGUAGES), "en")


def translate(text: str, language: str) -> str:
    return CHINESE.get(text, text) if language == "zh" else text

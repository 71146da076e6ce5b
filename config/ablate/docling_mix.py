# Overlay: the data of the papers' Llamas, 2T tokens of the docling data mix. The weights of the sources are
# ours, and the tokenizer is GPT-2's.
#   python data/docling_mix/prepare.py --max_tokens=100_000_000_000 --stack_edu_files=PATH
#   python train.py config/llama_3b.py config/ablate/docling_mix.py --out_dir=out/docling
dataset = (
    "data/docling_mix/dclm2/gpt2:24,data/docling_mix/dclm3plus/gpt2:24,data/docling_mix/fineweb2/gpt2:10,"
    "data/docling_mix/starcoder/gpt2:12,data/docling_mix/stack_edu/gpt2:12,data/docling_mix/finemath/gpt2:5,"
    "data/docling_mix/infiwebmath/gpt2:5,data/docling_mix/opc_math/gpt2:4,data/docling_mix/cosmopedia/gpt2:4"
)

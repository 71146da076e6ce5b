# A SwiGLU as wide as the model: a third more parameters than cffn_added.
#   python train.py config/study/dense.py config/study/swiglu_narrow.py --out_dir=out/arm
ffn = "swiglu"
ffn_hidden = 128

# Overlay: A SwiGLU as wide as the model: an eighth more parameters in the whole model than with cffn_added.
#   python train.py config/study/dense.py config/study/swiglu_narrow.py --out_dir=out/arm
ffn = "swiglu"
ffn_hidden = 128

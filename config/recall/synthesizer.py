# Overlay: Dense Synthesizer, whose attention weights depend on each token alone.
#   python train.py config/recall/softmax.py config/recall/synthesizer.py --out_dir=out/synthesizer
attention = "synthesizer"

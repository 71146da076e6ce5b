"""The text of HTML and Mallard pages."""

from corpus.page_text import page_text


def test_html():
    page = """<!DOCTYPE html><html><head><title>Head</title><style>p {}</style></head>
    <body class="search"><nav><ul><li>Menu</li></ul></nav>
    <div class="Sphinxsidebar x"><div>a <div>b</div></div> c</div>
    <h1>Title <a class="headerlink" href="#">¶</a></h1><p>One &amp; <b>two</b>
      lines<br>next</p><p></p>
    <ul><li>first <i>item</i></li><li><p>second</p></li></ul>
    <table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>
    <pre>x = 1
      y</pre><div role="navigation">next page</div><script>alert("<p>")</script>end</body></html>"""
    expected = "Title\n\nOne & two lines\nnext\n\nfirst item\n\nsecond\n\na b\nc\n\nx = 1\n      y\n\nend"
    assert page_text(page) == expected


def test_an_element_that_is_left_out_ends_with_its_own_end():
    assert page_text("<div class=toc><p>a<div>b</div><p>c</div>d") == "d"
    assert page_text("<p>a<input class=search><img class=toc>b</p>") == "ab"


def test_mallard():
    page = """<?xml version="1.0"?><page xmlns="x" id="help"><info><desc>About</desc></info>
    <title>Help</title><p>Press <key>Tab</key>.</p><media src="a.png"/><steps><item><p>Do</p></item>
    <item><p>it</p></item></steps></page>"""
    assert page_text(page) == "Help\n\nPress Tab.\n\nDo\n\nit"


def test_what_is_not_a_page():
    assert page_text("") == ""
    assert page_text("no <tags and & signs").startswith("no")
    assert page_text("</div></pre>text") == "text"

// Search runs in a worker, which browsers refuse to pages that are opened as files. There, a hidden frame stands in for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.scope = frame.contentWindow;
      // later, as from a worker: whoever asks is not ready for an answer yet
      this.scope.postMessage = (data) => setTimeout(() => this.answer(data));
      this.scope.importScripts = (...urls) => urls.forEach((each) => this.load(each));
      this.load(url).onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
    }

    load(url) {
      const script = this.scope.document.createElement("script");
      script.src = new URL(url, location);
      script.async = false;
      this.scope.document.body.append(script);
      return script;
    }

    answer(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      if (!this.ready) {
        this.waiting.push(data);
        return;
      }
      this.scope.dispatchEvent(new MessageEvent("message", { data: this.scope.structuredClone(data) }));
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
